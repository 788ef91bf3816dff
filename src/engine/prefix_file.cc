#include "engine/prefix_file.h"

#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>

#include "core/check.h"
#include "core/file.h"
#include "core/quoted.h"
#include "model/content_hash.h"
#include "model/safetensors.h"
#include "model/safetensors_writer.h"
#include "model/stored_type.h"

namespace coppice {
namespace {

constexpr const char* kFormat = "coppice-prefix-1";
using Metadata = std::map<std::string, std::string>;

std::string Mode(bool deterministic) { return deterministic ? "deterministic" : "fast"; }

std::string TensorName(int32_t plane) { return "layers." + std::to_string(plane / 2) + (plane % 2 == 0 ? ".k" : ".v"); }

Metadata MetadataOf(const StoredPrefix& prefix) {
  return {{"format", kFormat},
          {"model", prefix.origin.model},
          {"dtype", std::string(Name(prefix.origin.dtype))},
          {"mode", Mode(prefix.origin.deterministic)},
          {"private_begin", std::to_string(prefix.private_begin)}};
}

// Over everything that a reader relies on.
std::string Checksum(const StoredPrefix& prefix) {
  ContentHash hash;
  for (const auto& [name, value] : MetadataOf(prefix)) {
    hash.AddText(name);
    hash.AddText(value);
  }
  hash.AddText(prefix.salt);
  hash.Add(prefix.tokens.size());
  hash.AddBytes(std::as_bytes(std::span(prefix.tokens)));
  hash.AddBytes(prefix.kv);
  return hash.Hex();
}

// The values of MetadataOf that must be equal, in the order in which a user wants to hear of a difference.
Status CheckOrigin(const std::string& path, const Metadata& found, const KvOrigin& expected) {
  const auto value_of = [&](const char* name) {
    const auto entry = found.find(name);
    return entry == found.end() ? std::string() : entry->second;
  };
  if (value_of("format") != kFormat) {
    return InvalidArgument(path + ": not a prefix file: its format is " + Quoted(value_of("format")) + ", expected \"" + kFormat +
                           "\"");
  }
  const auto differs = [&](const char* what, const std::string& value, const std::string& wanted) {
    return InvalidArgument(path + ": the prefix was computed with " + what + " " + Quoted(value) + ", this engine has " + wanted +
                           ": compute and save it again");
  };
  const std::string model = value_of("model"), dtype = value_of("dtype"), mode = value_of("mode");
  if (model != expected.model) return differs("model", model, expected.model);
  if (dtype != Name(expected.dtype)) return differs("KV in", dtype, std::string(Name(expected.dtype)));
  // Fast KV would break the promise of a deterministic engine; the other way round any KV is as good as its own.
  if (expected.deterministic && mode != Mode(true)) return differs("mode", mode, Mode(true));
  return OkStatus();
}

}  // namespace

Result<std::string> ResolvePrefixOutput(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(std::string resolved, ResolveOutput(path));
  std::error_code absent;
  if (const auto size = std::filesystem::file_size(resolved, absent); absent || size == 0) return resolved;
  const Result<SafetensorsFile> file = SafetensorsFile::Open(resolved);
  const Result<Metadata> metadata = file.ok() ? file->Metadata() : file.status();
  if (!metadata.ok() || !metadata->contains("format") || metadata->at("format") != kFormat)
    return InvalidArgument(path + " holds something else than a prefix, which would be lost; give another name or remove it");
  return resolved;
}

Status WritePrefixFile(const std::string& path, const StoredPrefix& prefix) {
  COPPICE_ASSIGN_OR_RETURN(const std::string resolved, ResolvePrefixOutput(path));
  const KvOrigin& origin = prefix.origin;
  const int64_t num_tokens = static_cast<int64_t>(prefix.tokens.size());
  COPPICE_CHECK(static_cast<int64_t>(prefix.kv.size()) == num_tokens * origin.bytes_per_token());
  std::vector<TensorToWrite> tensors = {
      {"tokens", StoredType::kI32, {num_tokens}, std::as_bytes(std::span(prefix.tokens))},
      {"salt", StoredType::kU8, {static_cast<int64_t>(prefix.salt.size())}, std::as_bytes(std::span(prefix.salt))}};
  const int32_t planes = 2 * origin.num_layers;
  const size_t plane_bytes = prefix.kv.size() / planes;
  for (int32_t plane = 0; plane < planes; ++plane) {
    tensors.push_back({TensorName(plane),
                       StoredTypeOf(origin.dtype),
                       {num_tokens, origin.num_kv_heads, origin.head_dim},
                       std::span(prefix.kv).subspan(plane * plane_bytes, plane_bytes)});
  }
  Metadata metadata = MetadataOf(prefix);
  metadata["checksum"] = Checksum(prefix);
  return WriteSafetensors(resolved, tensors, metadata);
}

Result<StoredPrefix> ReadPrefixFile(const std::string& path, const KvOrigin& expected) {
  COPPICE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  COPPICE_ASSIGN_OR_RETURN(Metadata metadata, file.Metadata());
  COPPICE_RETURN_IF_ERROR(CheckOrigin(path, metadata, expected));
  StoredPrefix prefix{.origin = expected};
  prefix.origin.deterministic = metadata["mode"] == Mode(true);
  COPPICE_ASSIGN_OR_RETURN(prefix.tokens, file.Read<int32_t>("tokens"));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<uint8_t> salt, file.Read<uint8_t>("salt"));
  prefix.salt.assign(salt.begin(), salt.end());
  // The checksum covers it, but a forged file can have a checksum too.
  const std::string& begin = metadata["private_begin"];
  const auto [end, error] = std::from_chars(begin.data(), begin.data() + begin.size(), prefix.private_begin);
  if (error != std::errc() || end != begin.data() + begin.size() || prefix.private_begin < 0 ||
      static_cast<size_t>(prefix.private_begin) > prefix.tokens.size()) {
    return DataLoss(path + ": private_begin is " + Quoted(begin) + ", expected 0.." + std::to_string(prefix.tokens.size()) +
                    ": the file is corrupt");
  }

  const std::vector<int64_t> shape = {static_cast<int64_t>(prefix.tokens.size()), expected.num_kv_heads, expected.head_dim};
  prefix.kv.reserve(prefix.tokens.size() * expected.bytes_per_token());
  for (int32_t plane = 0; plane < 2 * expected.num_layers; ++plane) {
    const auto tensor = file.tensors().find(TensorName(plane));
    if (tensor == file.tensors().end() || tensor->second.shape != shape || tensor->second.type != StoredTypeOf(expected.dtype)) {
      return DataLoss(path + ": tensor " + TensorName(plane) +
                      " is missing or has another shape than the model's KV: the file is corrupt");
    }
    prefix.kv.insert(prefix.kv.end(), tensor->second.data.begin(), tensor->second.data.end());
  }
  if (const std::string sum = Checksum(prefix); sum != metadata["checksum"]) {
    return DataLoss(path + ": the checksum is " + sum + ", the file says " + Quoted(metadata["checksum"]) +
                    ": the file is corrupt, compute and save the prefix again");
  }
  return prefix;
}

Result<std::vector<int32_t>> ReadPrefixTokens(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  return file.Read<int32_t>("tokens");
}

}  // namespace coppice
