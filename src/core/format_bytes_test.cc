#include "core/format_bytes.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

TEST(FormatBytes, BinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(3.0 * 1024 * 1024 * 1024), "3.0 GiB");
}

}  // namespace
}  // namespace coppice
