// Writes into the KV pool: appended tokens, copied pages, moved tokens. With the kernels the only code that indexes inside a (page,
// head). Layer: attention/cpu. Arguments are checked here; see Context::AppendKv, Context::CopyPages and Context::MoveSlots.
#pragma once

#include <span>

#include "coppice/attention/attention.h"

namespace coppice::attention::cpu {

Status AppendKv(Executor& executor, const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args);
Status CopyPages(Executor& executor, const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies);
Status MoveSlots(const AttentionSpec& spec, const KvLayerView& kv, std::span<const SlotMove> moves);

}  // namespace coppice::attention::cpu
