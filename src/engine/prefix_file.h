// A prefix on disk: tokens and KV of a prompt that was computed once, so that another process need not compute it again. One
// safetensors file: "tokens", "salt", and "layers.N.k" and "layers.N.v" [tokens, kv_heads, head_dim], whatever the page size; its
// metadata says what model the KV belongs to and holds a checksum over everything.
// Layer: engine. Offline prefill of a system prompt's KV: RelayAttention section 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "model/config.h"

namespace coppice {

// The identity of KV: it may be used only where all of this is equal.
struct KvOrigin {
  std::string model;  // fingerprint
  DType dtype = DType::kBF16;
  int32_t num_layers = 0, num_kv_heads = 0, head_dim = 0;
  bool deterministic = false;  // a deterministic engine promises bits that other engines' KV does not have

  bool operator==(const KvOrigin&) const = default;
  int64_t bytes_per_token() const {
    return int64_t{2} * num_layers * num_kv_heads * head_dim * static_cast<int64_t>(SizeOf(dtype));
  }
};

struct StoredPrefix {
  KvOrigin origin;
  std::vector<int32_t> tokens;
  std::string salt;  // empty: public
  int32_t private_begin = 0;
  std::vector<std::byte> kv;  // [layer][K, V][token][kv_head][head_dim]
};

// Where WritePrefixFile(path) would write: `path` with symbolic links followed. An error if it would not, since something else is
// there than an earlier prefix file or an empty one (ResolveOutput of core/file.h).
Result<std::string> ResolvePrefixOutput(const std::string& path);

// Atomic: a reader finds the old file or the new one (core/file.h, FileReplacement). The file holds the prompt and its salt; its
// access follows from the umask. Errors: as ResolvePrefixOutput, or with the system's reason.
Status WritePrefixFile(const std::string& path, const StoredPrefix& prefix);

// The prefix in `path`, which must come from `expected`. NOT_FOUND: no such file. DATA_LOSS: truncated or corrupt.
// INVALID_ARGUMENT: no prefix file, or of another model, element type or mode (the message has both).
Result<StoredPrefix> ReadPrefixFile(const std::string& path, const KvOrigin& expected);

// The tokens that such a file says it is of, without its KV, and unchecked otherwise. Errors as SafetensorsFile::Open and Read.
Result<std::vector<int32_t>> ReadPrefixTokens(const std::string& path);

}  // namespace coppice
