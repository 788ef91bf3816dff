// Random names and keys: their form, and that none comes twice.
#include "core/random_bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

namespace coppice {
namespace {

TEST(RandomBytes, HexDigits) {
  std::set<std::string> names;
  std::set<char> digits;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = RandomHex(16);
    EXPECT_EQ(name.size(), 32u);
    EXPECT_EQ(name.find_first_not_of("0123456789abcdef"), name.npos);
    digits.insert(name.begin(), name.end());
    EXPECT_TRUE(names.insert(name).second);
  }
  EXPECT_EQ(digits.size(), 16u);
  EXPECT_EQ(RandomHex(0), "");
}

TEST(RandomBytes, LongRuns) {
  std::array<std::byte, 1024> bytes{};  // more than the system gives at once without a signal in between
  DrawRandom(bytes);
  EXPECT_GT(std::set<std::byte>(bytes.begin(), bytes.end()).size(), 200u);
}

}  // namespace
}  // namespace coppice
