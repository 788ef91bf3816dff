#include "server/body_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/testing/gzip.h"

namespace coppice::server {
namespace {

using ::testing::HasSubstr;

TEST(BodyDecoder, WhateverThePieces) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i * 7919 % 1000);
  const std::string packed = Gzip(text);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, packed.size()}) {
    BodyDecoder decoder;
    std::string body;
    for (size_t begin = 0; begin < packed.size(); begin += piece) {
      EXPECT_FALSE(decoder.done());
      ASSERT_TRUE(decoder.Put(packed.substr(begin, piece), text.size(), &body).ok());
    }
    EXPECT_TRUE(decoder.done());
    EXPECT_EQ(body, text);
  }
}

TEST(BodyDecoder, WhatIsNoGzipIsRefused) {
  const std::string packed = Gzip("text");
  const auto message = [](const std::string& bytes) {
    BodyDecoder decoder;
    std::string body;
    return decoder.Put(bytes, 100, &body).message();
  };
  EXPECT_THAT(message("{\"prompt\": \"a\"}"), HasSubstr("Content-Encoding is gzip"));
  EXPECT_THAT(message(packed + "x"), HasSubstr("something follows its end"));
  EXPECT_THAT(message(packed + packed), HasSubstr("something follows its end"));
  std::string damaged = packed;
  damaged[damaged.size() - 6] ^= 1;  // of the checksum
  EXPECT_THAT(message(damaged), HasSubstr("is none"));
  BodyDecoder cut;
  std::string body;
  EXPECT_TRUE(cut.Put(packed.substr(0, packed.size() - 1), 100, &body).ok());
  EXPECT_FALSE(cut.done());
}

TEST(BodyDecoder, WhatGrowsBeyondTheLimitIsRefused) {
  const std::string packed = Gzip(std::string(10 << 20, ' '));
  EXPECT_LT(packed.size(), 20'000u);
  BodyDecoder decoder;
  std::string body;
  EXPECT_EQ(decoder.Put(packed, 1 << 20, &body).code(), StatusCode::kOutOfRange);
  EXPECT_LE(body.capacity(), 4u << 20);
  BodyDecoder exact;
  body.clear();
  EXPECT_TRUE(exact.Put(packed, 10 << 20, &body).ok());
  EXPECT_TRUE(exact.done());
}

TEST(BodyDecoder, Encodings) {
  for (const char* encoding : {"gzip", "x-gzip", "GZIP"}) EXPECT_TRUE(BodyDecoder::Takes(encoding)) << encoding;
  for (const char* encoding : {"", "identity", "br", "deflate", "gzip, gzip", "zstd"})
    EXPECT_FALSE(BodyDecoder::Takes(encoding)) << encoding;
  EXPECT_TRUE(IsIdentity(""));
  EXPECT_TRUE(IsIdentity("Identity"));
  EXPECT_FALSE(IsIdentity("gzip"));
}

}  // namespace
}  // namespace coppice::server
