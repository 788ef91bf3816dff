#include "grammar/string_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"
#include "grammar/ecma_regex.h"

namespace coppice {
namespace {

// ISO 8601 of RFC 3339, section 5.6: days that exist, in years from 1 on; no leap seconds, of which no clock knows the next ones.
const std::string kDate =
    R"((?:(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-)"
    R"((?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))"
    R"(|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29))";
const std::string kTime = R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
// RFC 3339, appendix A.
const std::string kDurationTime = R"(T(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S))";
const std::string kDuration = R"(P(?:\d{1,9}W|(?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D)(?:)" +
                              kDurationTime + ")?|" + kDurationTime + ")";
// RFC 1123, section 2.1. A label has 63 characters at most, and so has the name here.
const std::string kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
const std::string kHost = kLabel + R"((?:\.)" + kLabel + ")*";
constexpr LengthRange kHostLength = {1, 63};
const std::string kAtom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";  // RFC 5322, section 3.2.3
const std::string kEmail = kAtom + R"((?:\.)" + kAtom + ")*@" + kHost;
const std::string kOctet = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
const std::string kIpv4 = kOctet + R"((?:\.)" + kOctet + "){3}";
// RFC 4291, section 2.2, without the form that ends in an IPv4 address.
const std::string kHex16 = "[0-9A-Fa-f]{1,4}";
std::string Ipv6() {
  const auto groups = [](int least, int most, const std::string& group) {
    return fmt::format("(?:{}){{{},{}}}", group, least, most);
  };
  const std::string before = kHex16 + ":", after = ":" + kHex16;
  std::string all = groups(7, 7, before) + kHex16 + "|" + groups(1, 7, before) + ":";
  for (int count = 1; count <= 6; ++count) all += "|" + groups(1, 7 - count, before) + groups(1, count, after);
  return all + "|:" + groups(1, 7, after) + "|::";
}
// RFC 3986, appendix A, with names for hosts.
const std::string kEscaped = "%[0-9A-Fa-f]{2}";
const std::string kPathCharacter = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" + kEscaped + ")";
const std::string kPathCharacterButColon = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" + kEscaped + ")";
const std::string kAuthority = "//" + kHost + "(?::[0-9]{1,4})?";
const std::string kSegments = "(?:/" + kPathCharacter + "*)*";
const std::string kQuery = R"((?:\?(?:[/?]|)" + kPathCharacter + ")*)?(?:#(?:[/?]|" + kPathCharacter + ")*)?";
const std::string kScheme = "[A-Za-z][A-Za-z0-9+.-]*:";
const std::string kUri = kScheme + "(?:" + kAuthority + kSegments + "|" + kPathCharacter + "+" + kSegments + ")" + kQuery;
const std::string kUriReference = "(?:" + kUri + "|(?:" + kAuthority + kSegments + "|/(?:" + kPathCharacter + "+" + kSegments +
                                  ")?|(?:" + kPathCharacterButColon + "+" + kSegments + ")?)" + kQuery + ")";
// RFC 6570: variables alone and in lists.
const std::string kTemplate =
    "(?:[A-Za-z0-9._~!$&()*+,;=:@/?#-]|" + kEscaped + R"(|\{[+#./;?&]?[A-Za-z0-9_]+(?:,[A-Za-z0-9_]+)*\})*)";
const std::string kJsonPointer = R"((?:/(?:[^~/]|~[01])*)*)";  // RFC 6901
const std::string kHex = "[0-9A-Fa-f]";
// RFC 9562, section 4. `version`: of its digit; `variant`: of the one after it.
std::string Uuid(std::string_view version, std::string_view variant) {
  return fmt::format("{0}{{8}}-{0}{{4}}-{1}{0}{{3}}-{2}{0}{{3}}-{0}{{12}}", kHex, version, variant);
}
std::string Base64(std::string_view letters) {  // RFC 4648
  return fmt::format("(?:{0}{{4}})*(?:{0}{{2}}==|{0}{{3}}=)?", letters);
}

struct Source {
  std::string regex;  // that the whole text matches; empty: any text
  LengthRange length = {};
};

const std::map<std::string, Source, std::less<>>& Sources() {
  static const std::map<std::string, Source, std::less<>> sources = [] {
    std::map<std::string, Source, std::less<>> all = {
        {"date", {kDate}},
        {"time", {kTime}},
        {"date-time", {kDate + "T" + kTime}},
        {"duration", {kDuration}},
        {"email", {kEmail}},
        {"idn-email", {kEmail}},
        {"hostname", {kHost, kHostLength}},
        {"idn-hostname", {R"([a-z0-9]+(?:-[a-z0-9]+)*(?:\.[a-z0-9]+(?:-[a-z0-9]+)*)*)", kHostLength}},
        {"ipv4", {kIpv4}},
        {"ipv6", {Ipv6()}},
        {"ipvanyaddress", {kIpv4 + "|" + Ipv6()}},
        {"uri", {kUri}},
        {"iri", {kUri}},
        {"uri-reference", {kUriReference}},
        {"iri-reference", {kUriReference}},
        {"uri-template", {kTemplate}},
        {"json-pointer", {kJsonPointer}},
        {"relative-json-pointer", {R"(\d(?:#|)" + kJsonPointer + ")"}},
        {"uuid", {Uuid(kHex, kHex)}},
        {"base64", {Base64("[A-Za-z0-9+/]")}},
        {"byte", {Base64("[A-Za-z0-9+/]")}},
        {"base64url", {Base64("[A-Za-z0-9_-]")}},
    };
    for (char version = '1'; version <= '8'; ++version) all[fmt::format("uuid{}", version)] = {Uuid({&version, 1}, "[89ABab]")};
    // These formats say how a text is shown or used, or how a number is stored, and allow every value.
    for (const char* const name : {"password", "binary", "path", "file-path", "directory-path", "float", "double", "int8", "int16",
                                   "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
      all[name] = {};
    return all;
  }();
  return sources;
}

}  // namespace

Result<std::optional<StringFormat>> FindStringFormat(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, StringFormat, std::less<>> known;
  const auto source = Sources().find(name);
  if (source == Sources().end()) {
    return InvalidArgument(fmt::format(
        "{} is no format that is known here: leave it out, or say what the text looks like by a pattern", Quoted(name)));
  }
  if (source->second.regex.empty()) return std::optional<StringFormat>();
  const std::lock_guard lock(mutex);
  const auto found = known.find(name);
  if (found != known.end()) return std::optional(found->second);
  COPPICE_ASSIGN_OR_RETURN(Automaton texts, ParseEcmaRegex("^(?:" + source->second.regex + ")$", RegexReading::kAgreed));
  return std::optional(known.emplace(name, StringFormat{std::move(texts), source->second.length}).first->second);
}

}  // namespace coppice
