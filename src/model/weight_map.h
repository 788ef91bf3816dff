// Every weight of a model: what it is, how its file names it, its shape. Checking and loading read this one list.
// Layer: model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/families/family.h"
#include "model/shard.h"

namespace coppice {

inline constexpr int32_t kNoLayer = -1;  // of the model

struct WeightEntry {
  std::string name;            // Hugging Face, without ".weight" or ".bias"
  std::vector<int64_t> shape;  // of .weight, outermost dimension first
  bool bias = false;           // there is a .bias of shape[0] elements
};

// By layer and role; exactly those that the forward pass of `config` reads.
using WeightMap = std::map<std::pair<int32_t, WeightRole>, WeightEntry>;
WeightMap WeightsOf(const ModelConfig& config);

// Where the rows of q, k and v lie in the fused projection, in that order. kSeparate: nothing.
std::vector<RowRun> FusedRows(const ModelConfig& config);
// Rows [of.begin, of.begin + of.count) of what the runs are one after the other.
std::vector<RowRun> SelectRows(const std::vector<RowRun>& runs, RowRun of);

// "blk.7.attn_q" -> "model.layers.7.self_attn.q_proj" in a family's names; nothing for a name that it does not have.
std::optional<std::string> HuggingFaceName(const Family& family, std::string_view gguf_name);
// A role's name in a family's folders, {} for the layer, without ".weight"; nothing where the family has no such weight.
std::optional<std::string_view> NameInFolders(const Family& family, WeightRole role);
// The role of "attn_q"; nothing if no family has it.
std::optional<WeightRole> RoleOfGgufName(std::string_view stem);

}  // namespace coppice
