#include "grammar/decimal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"

namespace coppice {
namespace {

// Of two magnitudes.
std::strong_ordering CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() <=> b.whole.size();
  if (a.whole != b.whole) return a.whole <=> b.whole;
  return a.fraction <=> b.fraction;  // one that the other begins with is smaller: it does not end in a zero
}

// How a number that is read digit by digit compares with a bound.
enum class Order : int8_t { kLess = -1, kEqual = 0, kGreater = 1 };

Order OrderOf(char a, char b) { return a < b ? Order::kLess : a > b ? Order::kGreater : Order::kEqual; }

// Magnitudes between bounds, which are none where they are absent.
struct MagnitudeRange {
  std::optional<NumberBound> least, most;
};

std::optional<MagnitudeRange> MagnitudesOf(const NumberSet& set, bool negative) {
  std::optional<NumberBound> least = set.least, most = set.most;
  if (negative) std::swap(least, most);
  const auto magnitude_is_negative = [&](const NumberBound& bound) {
    return !bound.value.is_zero() && bound.value.negative != negative;
  };
  if (most && (magnitude_is_negative(*most) || (most->value.is_zero() && most->exclusive))) return std::nullopt;
  if (least && magnitude_is_negative(*least)) least.reset();
  return MagnitudeRange{std::move(least), std::move(most)};
}

// Where a text stands while it is read.
struct Place {
  enum class Phase : uint8_t { kBegin, kZero, kWhole, kPoint, kFraction } phase = Phase::kBegin;
  int32_t digits = 0;  // of the whole part, then of the fraction; not counted further than it matters
  Order least = Order::kEqual, most = Order::kEqual;
  int64_t rest = 0;  // of the number, divided by what it is to be a multiple of

  friend auto operator<=>(const Place&, const Place&) = default;
};

class Builder {
 public:
  Builder(const NumberSet& set, int32_t max_fraction) : set_(set), max_fraction_(max_fraction) { states_.emplace_back(); }

  Result<Automaton> Build() {
    if (const auto range = MagnitudesOf(set_, /*negative=*/false)) {
      COPPICE_RETURN_IF_ERROR(Add(*range, /*begin=*/0, /*may_be_zero=*/true));
    }
    if (const auto range = MagnitudesOf(set_, /*negative=*/true)) {
      states_.emplace_back();
      const auto begin = static_cast<int32_t>(states_.size()) - 1;
      states_[0].edges.push_back({'-', '-', begin});
      COPPICE_RETURN_IF_ERROR(Add(*range, begin, /*may_be_zero=*/!set_.whole));
    }
    Automaton texts(std::move(states_));
    if (texts.states().size() > Automaton::kMaxStates) return TooLarge();
    return texts;
  }

 private:
  static constexpr size_t kMaxPlaces = 200000;
  static Status TooLarge() { return InvalidArgument("the bounds of a number and what it is a multiple of are too large together"); }

  Status Add(const MagnitudeRange& range, int32_t begin, bool may_be_zero) {
    std::map<Place, int32_t> numbers = {{Place(), begin}};
    std::vector<Place> places = {Place()};
    for (size_t i = 0; i < places.size(); ++i) {
      const Place place = places[i];
      const int32_t from = numbers[place];
      states_[from].accepts = Ends(range, place);
      for (const char c : {'.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}) {
        if (c == '0' && place.phase == Place::Phase::kBegin && !may_be_zero) continue;
        const std::optional<Place> next = Next(range, place, c);
        if (!next) continue;
        const auto [found, is_new] = numbers.emplace(*next, static_cast<int32_t>(states_.size()));
        if (is_new) {
          places.push_back(*next);
          states_.emplace_back();
        }
        states_[from].edges.push_back({static_cast<char32_t>(c), static_cast<char32_t>(c), found->second});
      }
      if (states_.size() > kMaxPlaces) return TooLarge();
    }
    return OkStatus();
  }

  std::optional<Place> Next(const MagnitudeRange& range, Place place, char c) const {
    using Phase = Place::Phase;
    if (c == '.') {
      if (set_.whole || max_fraction_ == 0 || (place.phase != Phase::kZero && place.phase != Phase::kWhole)) return std::nullopt;
      return Place{.phase = Phase::kPoint,
                   .least = WholeOrder(range.least, place, place.least),
                   .most = WholeOrder(range.most, place, place.most)};
    }
    switch (place.phase) {
      case Phase::kZero: return std::nullopt;
      case Phase::kBegin:
        if (c == '0') return Place{.phase = Phase::kZero};
        [[fallthrough]];
      case Phase::kWhole:
        place.phase = Phase::kWhole;
        place.least = Compared(range.least, &Decimal::whole, place.digits, place.least, c);
        place.most = Compared(range.most, &Decimal::whole, place.digits, place.most, c);
        place.digits = std::min(place.digits + 1, Longest(range) + 1);
        place.rest = (place.rest * 10 + (c - '0')) % set_.multiple;
        return place;
      case Phase::kPoint:
      case Phase::kFraction:
        if (place.digits == max_fraction_) return std::nullopt;
        place.phase = Phase::kFraction;
        place.least = Compared(range.least, &Decimal::fraction, place.digits, place.least, c);
        place.most = Compared(range.most, &Decimal::fraction, place.digits, place.most, c);
        ++place.digits;
        return place;
    }
    return std::nullopt;
  }

  static int32_t Longest(const MagnitudeRange& range) {
    size_t longest = 0;
    for (const std::optional<NumberBound>& bound : {range.least, range.most}) {
      if (bound) longest = std::max(longest, bound->value.whole.size());
    }
    return static_cast<int32_t>(longest);
  }

  // After one more digit, the one with this index.
  static Order Compared(const std::optional<NumberBound>& bound, std::string Decimal::*digits, int32_t index, Order before,
                        char c) {
    if (!bound || before != Order::kEqual) return before;
    const std::string& expected = bound->value.*digits;
    if (digits == &Decimal::whole && index >= static_cast<int32_t>(expected.size()))
      return before;  // decided by the number of digits
    return OrderOf(c, index < static_cast<int32_t>(expected.size()) ? expected[index] : '0');
  }

  // Once the whole part has ended.
  static Order WholeOrder(const std::optional<NumberBound>& bound, const Place& place, Order digits) {
    if (!bound) return Order::kEqual;
    const auto expected = static_cast<int32_t>(bound->value.whole.size());
    const int32_t read = place.phase == Place::Phase::kZero ? 0 : place.digits;
    if (read != expected) return read < expected ? Order::kLess : Order::kGreater;
    return digits;
  }

  static Order FinalOrder(const std::optional<NumberBound>& bound, const Place& place, Order order) {
    using Phase = Place::Phase;
    if (!bound) return Order::kEqual;
    const bool whole_alone = place.phase == Phase::kZero || place.phase == Phase::kWhole;
    if (whole_alone) order = WholeOrder(bound, place, order);
    const auto read = whole_alone ? size_t{0} : static_cast<size_t>(place.digits);
    return order == Order::kEqual && read < bound->value.fraction.size() ? Order::kLess : order;
  }

  bool Ends(const MagnitudeRange& range, const Place& place) const {
    using Phase = Place::Phase;
    if (place.phase == Phase::kBegin || place.phase == Phase::kPoint || place.rest != 0) return false;
    const Order least = FinalOrder(range.least, place, place.least), most = FinalOrder(range.most, place, place.most);
    const bool above = !range.least || least == Order::kGreater || (least == Order::kEqual && !range.least->exclusive);
    const bool below = !range.most || most == Order::kLess || (most == Order::kEqual && !range.most->exclusive);
    return above && below;
  }

  const NumberSet& set_;
  int32_t max_fraction_;
  std::vector<Automaton::State> states_;
};

}  // namespace

Decimal Decimal::Of(const nlohmann::ordered_json& number) {
  COPPICE_CHECK(number.is_number());
  const std::string text = number.dump();  // such as -12, 0.5 and 1.5e-07
  std::string_view rest = text;
  Decimal result;
  result.negative = rest.starts_with('-');
  if (result.negative) rest.remove_prefix(1);
  int64_t exponent = 0;
  if (const size_t e = rest.find('e'); e != rest.npos) {
    std::string_view digits = rest.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    rest = rest.substr(0, e);
  }
  const size_t point = std::min(rest.find('.'), rest.size());
  std::string digits(rest.substr(0, point));
  auto whole = static_cast<int64_t>(digits.size()) + exponent;
  if (point < rest.size()) digits += rest.substr(point + 1);
  if (whole < 0) digits.insert(0, static_cast<size_t>(-std::exchange(whole, 0)), '0');
  if (whole > static_cast<int64_t>(digits.size())) digits.resize(static_cast<size_t>(whole), '0');
  result.whole = digits.substr(0, static_cast<size_t>(whole));
  result.fraction = digits.substr(static_cast<size_t>(whole));
  result.whole.erase(0, std::min(result.whole.find_first_not_of('0'), result.whole.size()));
  result.fraction.erase(result.fraction.find_last_not_of('0') + 1);
  if (result.is_zero()) result.negative = false;
  return result;
}

std::strong_ordering operator<=>(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? std::strong_ordering::less : std::strong_ordering::greater;
  return a.negative ? CompareMagnitudes(b, a) : CompareMagnitudes(a, b);
}

bool NumberSet::Contains(const Decimal& number) const {
  if (least && (number < least->value || (number == least->value && least->exclusive))) return false;
  if (most && (number > most->value || (number == most->value && most->exclusive))) return false;
  if (!whole) return true;
  if (!number.fraction.empty()) return false;
  int64_t rest = 0;
  for (const char c : number.whole) rest = (rest * 10 + (c - '0')) % multiple;
  return rest == 0;
}

Result<Automaton> NumberTexts(const NumberSet& set) {
  constexpr int32_t kExactDigits = 15;  // decimals of so many digits are different doubles (DBL_DIG)
  // Where bounds have more digits than that, so few leave some for a fraction.
  constexpr int32_t kWholeDigits = 10;
  const Decimal furthest = {.whole = std::string(kWholeDigits, '9')};
  NumberSet written = set;
  int32_t digits = 0;
  for (const auto& [bound, outward] : {std::pair(&written.least, true), {&written.most, false}}) {
    if (!*bound) continue;
    Decimal& value = (*bound)->value;
    if (!set.whole && std::ssize(value.whole) > kExactDigits && value.negative == outward) {
      value = furthest;
      value.negative = outward;
    }
    digits = std::max(digits, static_cast<int32_t>(value.whole.size()));
  }
  const Status too_long = InvalidArgument(
      fmt::format("a bound of a number has {} digits before the point, expected at most {}, or an integer", digits, kExactDigits));
  if (!set.whole && digits > kExactDigits) return too_long;
  Result<Automaton> texts = Builder(written, kExactDigits - digits).Build();
  // Numbers beyond may be of the set.
  if (texts.ok() && texts->empty() && (written.least != set.least || written.most != set.most)) return too_long;
  return texts;
}

}  // namespace coppice
