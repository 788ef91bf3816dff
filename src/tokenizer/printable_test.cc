#include "tokenizer/printable.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(Printable("caf\xc3\xa9 \xf0\x9f\x8c\xb3"), "caf\xc3\xa9 \xf0\x9f\x8c\xb3");
  EXPECT_EQ(Printable("a\nb\x1b[2J"), "a\\x0ab\\x1b[2J");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b");  // a control character of C1
  EXPECT_EQ(Printable("x\xff\xc3"), "x\\xff\\xc3");
  EXPECT_EQ(Printable(""), "");
}

}  // namespace
}  // namespace coppice
