#include "simulate/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "core/math.h"

namespace coppice::simulate {
namespace {

using nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 30;  // of a prompt: what PrefixForestView allows
constexpr size_t kQuoted = 40;                     // bytes of a value in a message

// FNV-1a: equal in every run.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

Status Wrong(std::string_view field, const json& value, std::string_view expected) {
  return InvalidArgument(fmt::format("{} is {}, expected {}", field, PrintableJson(value, kQuoted), expected));
}

Result<uint64_t> ParseId(std::string_view field, const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_string()) return HashOf(value.get_ref<const std::string&>());
  return Wrong(field, value, "a whole number of at least 0, or a text");
}

// A whole number from `least` to 2^30; `absent` where the field is not there.
Result<int32_t> ParseCount(const json& line, const char* field, int32_t least, std::optional<int32_t> absent = {}) {
  const auto found = line.find(field);
  if (found == line.end()) {
    if (absent) return *absent;
    return InvalidArgument(fmt::format("there is no {}", field));
  }
  if (!found->is_number_unsigned() || found->get<uint64_t>() < static_cast<uint64_t>(least) ||
      found->get<uint64_t>() > static_cast<uint64_t>(kMostTokens))
    return Wrong(field, *found, fmt::format("a whole number from {} to {}", least, kMostTokens));
  return static_cast<int32_t>(found->get<uint64_t>());
}

Status ParseSegments(const json& value, std::vector<Segment>* prompt) {
  constexpr std::string_view kExpected = "a list of [id, tokens], with at least one token each";
  if (!value.is_array() || value.empty()) return Wrong("segments", value, kExpected);
  int64_t total = 0;
  for (const json& segment : value) {
    if (!segment.is_array() || segment.size() != 2 || !segment[1].is_number_unsigned() || segment[1].get<uint64_t>() < 1 ||
        segment[1].get<uint64_t>() > static_cast<uint64_t>(kMostTokens))
      return Wrong("a segment", segment, "[id, tokens], with at least one token");
    COPPICE_ASSIGN_OR_RETURN(const uint64_t id, ParseId("the id of a segment", segment[0]));
    prompt->push_back({.id = id, .tokens = static_cast<int32_t>(segment[1].get<uint64_t>())});
    total += prompt->back().tokens;
  }
  if (total > kMostTokens)
    return InvalidArgument(fmt::format("the segments have {} tokens, expected {} at most", total, kMostTokens));
  return OkStatus();
}

Status ParseBlocks(const json& value, int32_t input_tokens, int32_t block_tokens, std::vector<Segment>* prompt) {
  if (!value.is_array()) return Wrong("hash_ids", value, "a list of ids");
  const int64_t blocks = CeilDiv(input_tokens, block_tokens);
  if (std::ssize(value) != blocks)
    return InvalidArgument(
        fmt::format("there are {} hash_ids and {} tokens (input_length), expected {} blocks of {}; the option "
                    "--block-tokens says how long a block is",
                    value.size(), input_tokens, blocks, block_tokens));
  int32_t left = input_tokens;
  for (const json& id : value) {
    COPPICE_ASSIGN_OR_RETURN(const uint64_t found, ParseId("a hash id", id));
    prompt->push_back({.id = found, .tokens = std::min(left, block_tokens)});
    left -= block_tokens;
  }
  return OkStatus();
}

}  // namespace

int32_t Trace::Find(int32_t parent, const Segment& segment) {
  COPPICE_DCHECK(segment.tokens > 0);
  const auto [found, is_new] =
      ids_.try_emplace(Key{.id = segment.id, .parent = parent, .tokens = segment.tokens}, static_cast<int32_t>(nodes_.size()));
  if (is_new) {
    const int32_t begin = parent == kNoNode ? 0 : nodes_[parent].end;
    nodes_.push_back({.parent = parent, .tokens = segment.tokens, .end = begin + segment.tokens});
    node_ids_.push_back(segment.id);
  }
  return found->second;
}

void Trace::Add(const TraceLine& line) {
  TraceRequest request{.arrival = line.arrival, .output_tokens = line.output_tokens, .samples = line.samples};
  for (const Segment& segment : line.prompt) request.prompt = Find(request.prompt, segment);
  COPPICE_CHECK(request.prompt != kNoNode);
  if (line.output_id && line.output_tokens > 0 && line.samples == 1)
    request.output = Find(request.prompt, {.id = *line.output_id, .tokens = line.output_tokens});
  requests_.push_back(request);
}

void Trace::Sort() { std::ranges::stable_sort(requests_, {}, &TraceRequest::arrival); }

std::vector<Segment> Trace::PathTo(int32_t node) const {
  std::vector<Segment> path;
  for (; node != kNoNode; node = nodes_[node].parent) path.push_back({.id = node_ids_[node], .tokens = nodes_[node].tokens});
  std::ranges::reverse(path);
  return path;
}

Result<TraceLine> ParseTraceLine(std::string_view text, int32_t block_tokens) {
  COPPICE_ASSIGN_OR_RETURN(const json line, ParseJson(text));
  if (!line.is_object()) return Wrong("the line", line, "an object");
  constexpr std::string_view kFields[] = {"timestamp",     "segments", "hash_ids", "input_length",
                                          "output_length", "samples",  "output_id"};
  for (const auto& [name, value] : line.items()) {
    if (std::ranges::find(kFields, name) == std::end(kFields))
      return InvalidArgument(
          fmt::format("there is no field {}, expected timestamp, segments or hash_ids, input_length, output_length, samples, "
                      "output_id",
                      PrintableJson(json(name), kQuoted)));
  }
  const auto timestamp = line.find("timestamp");
  if (timestamp == line.end()) return InvalidArgument("there is no timestamp");
  TraceLine parsed;
  if (!timestamp->is_number() || !((parsed.arrival = timestamp->get<double>() * 1e-3) >= 0) || parsed.arrival > 1e12)
    return Wrong("timestamp", *timestamp, "milliseconds, at least 0");
  COPPICE_ASSIGN_OR_RETURN(parsed.output_tokens, ParseCount(line, "output_length", 0));
  COPPICE_ASSIGN_OR_RETURN(parsed.samples, ParseCount(line, "samples", 1, 1));
  const auto segments = line.find("segments"), blocks = line.find("hash_ids");
  if ((segments == line.end()) == (blocks == line.end()))
    return InvalidArgument(segments == line.end() ? "there are neither segments nor hash_ids"
                                                  : "there are segments and hash_ids; leave one out");
  if (segments != line.end()) {
    COPPICE_RETURN_IF_ERROR(ParseSegments(*segments, &parsed.prompt));
  } else {
    COPPICE_ASSIGN_OR_RETURN(const int32_t tokens, ParseCount(line, "input_length", 1));
    COPPICE_RETURN_IF_ERROR(ParseBlocks(*blocks, tokens, block_tokens, &parsed.prompt));
  }
  if (const auto id = line.find("output_id"); id != line.end()) {
    COPPICE_ASSIGN_OR_RETURN(parsed.output_id, ParseId("output_id", *id));
  }
  return parsed;
}

std::string FormatTraceLine(const Trace& trace, const TraceRequest& request) {
  std::string text = fmt::format("{{\"timestamp\":{:.3f},\"segments\":[", request.arrival * 1e3);
  std::string_view comma;
  for (const Segment& segment : trace.PathTo(request.prompt)) {
    text += fmt::format("{}[{},{}]", std::exchange(comma, ","), segment.id, segment.tokens);
  }
  text += fmt::format("],\"output_length\":{}", request.output_tokens);
  if (request.samples > 1) text += fmt::format(",\"samples\":{}", request.samples);
  if (request.output != kNoNode) text += fmt::format(",\"output_id\":{}", trace.PathTo(request.output).back().id);
  return text + "}\n";
}

double EndlessHitRate(const Trace& trace) {
  std::vector<bool> is_there(trace.nodes().size());
  int64_t prompt_tokens = 0, found = 0;
  for (const TraceRequest& request : trace.requests()) {
    const int32_t tokens = trace.prompt_tokens(request);
    int32_t cached = 0;
    for (int32_t n = request.prompt; n != kNoNode; n = trace.nodes()[n].parent) {
      if (is_there[n]) {  // what is before it is there, too
        cached = std::max(cached, trace.nodes()[n].end);
        break;
      }
      is_there[n] = true;
    }
    if (request.output != kNoNode) is_there[request.output] = true;
    prompt_tokens += tokens;
    found += std::min(cached, tokens - 1);
  }
  return prompt_tokens > 0 ? static_cast<double>(found) / static_cast<double>(prompt_tokens) : 0;
}

}  // namespace coppice::simulate
