// The lines that a server begins with.
#include "server/start_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coppice::server {
namespace {

using ::testing::HasSubstr;

TEST(StartLines, ModelRoomAndAddress) {
  ModelInfo model;
  model.architecture = "llama";
  model.num_layers = 30;
  model.kv_bytes_per_token = 1 << 14;
  StartFacts facts = {.name = "small", .address = "http://127.0.0.1:8000", .max_context = 2048, .page_size = 16, .pages = 256};
  const auto [what, room, where] = StartLines(model, facts);
  EXPECT_EQ(what, "model small (llama, 30 layers), context of 2048 tokens");
  EXPECT_THAT(room, HasSubstr("KV cache of 64 MiB for 4096 tokens; sharing tree: "));
  EXPECT_EQ(where, "page at http://127.0.0.1:8000/, API at http://127.0.0.1:8000/v1, for every request that reaches this address");
  facts.sharing = SharingMode::kStore;
  facts.needs_key = true;
  EXPECT_THAT(StartLines(model, facts)[1], HasSubstr("each sample reads it by itself"));
  EXPECT_THAT(StartLines(model, facts)[2], HasSubstr("for requests with an API key"));
}

}  // namespace
}  // namespace coppice::server
