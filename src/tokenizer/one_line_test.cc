#include "tokenizer/one_line.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

TEST(OneLine, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(OneLine("caf\xc3\xa9 \xf0\x9f\x8c\xb3"), "caf\xc3\xa9 \xf0\x9f\x8c\xb3");
  EXPECT_EQ(OneLine("a\nb\x1b[2J"), "a\\x0ab\\x1b[2J");
  EXPECT_EQ(OneLine("\xc2\x9b"), "\\xc2\\x9b");  // a control character of C1
  EXPECT_EQ(OneLine("x\xff\xc3"), "x\\xff\\xc3");
  EXPECT_EQ(OneLine(""), "");
}

}  // namespace
}  // namespace coppice
