#include "server/start_lines.h"

#include <fmt/format.h>

#include <string_view>

namespace coppice::server {
namespace {

std::string_view SharingText(SharingMode sharing) {
  switch (sharing) {
    case SharingMode::kTree: return "what prompts have in common is stored once, and read once for all where that is faster";
    case SharingMode::kOneLevel: return "what prompts have in common is stored once; what all of them have in common is read once";
    case SharingMode::kStore: return "what prompts have in common is stored once, and each sample reads it by itself";
    case SharingMode::kNone: return "each sample has its own copy of its prompt";
  }
  return "";
}

}  // namespace

std::array<std::string, 3> StartLines(const ModelInfo& model, const StartFacts& facts) {
  const int64_t room = int64_t{facts.pages} * facts.page_size;
  const double mib = static_cast<double>(room * model.kv_bytes_per_token) / (1 << 20);
  return {fmt::format("model {} ({}, {} layers), context of {} tokens", facts.name, model.architecture, model.num_layers,
                      facts.max_context),
          fmt::format("KV cache of {:.0f} MiB for {} tokens; sharing {}: {}", mib, room, Name(facts.sharing),
                      SharingText(facts.sharing)),
          fmt::format("page at {0}/, API at {0}/v1, {1}", facts.address,
                      facts.needs_key ? "for requests with an API key" : "for every request that reaches this address")};
}

}  // namespace coppice::server
