// Writes into the KV pool: appended tokens and copied pages. With the kernels the only code that indexes inside a (page, head).
// Layer: attention/cpu. Arguments are checked here; see Context::AppendKv and Context::CopyPages.
#pragma once

#include <span>

#include "coppice/attention.h"

namespace coppice::attention::cpu {

Status AppendKv(Executor& executor, const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args);
Status CopyPages(Executor& executor, const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies);

}  // namespace coppice::attention::cpu
