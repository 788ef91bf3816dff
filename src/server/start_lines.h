// The first lines of a server's log. Layer: server.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "coppice/engine/engine.h"

namespace coppice::server {

struct StartFacts {
  std::string name, address;  // of the model as clients know it; "http://127.0.0.1:8000"
  int32_t max_context = 0, page_size = 0, pages = 0;
  SharingMode sharing = SharingMode::kTree;
  bool needs_key = false;
};

// Three lines: the model and its context; the room for KV and how it is shared; where the page and the API are.
std::array<std::string, 3> StartLines(const ModelInfo& model, const StartFacts& facts);

}  // namespace coppice::server
