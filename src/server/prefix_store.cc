#include "server/prefix_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "engine/prefix_file.h"
#include "openai/request.h"
#include "server/record.h"

namespace coppice::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char *kRecord = ".json", *kKv = ".safetensors";

constexpr int64_t kLastSecond = int64_t{1} << 33;  // of records: the year 2242; a clock of nanoseconds holds it

int64_t Seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

// What a record holds besides the body of the request that made it.
struct Record {
  std::string key, name;
  int64_t created = 0;
  std::optional<int64_t> expires;
  openai::NamedPrefix prefix;
};

Result<Record> ParseRecord(const std::string& text) {
  COPPICE_ASSIGN_OR_RETURN(const json value, ParseJson(text));
  const auto is = [&](const char* name, bool (json::*type)() const noexcept) {
    return value.is_object() && value.contains(name) && (value[name].*type)();
  };
  if (!is("key", &json::is_string) || !is("name", &json::is_string) || !is("created", &json::is_number_integer) ||
      !is("token_ids", &json::is_array) || !is("prefix", &json::is_object))
    return InvalidArgument("it is no record of a prefix");
  openai::BodyError error;
  constexpr std::string_view kBody[] = {"prefix"};
  COPPICE_ASSIGN_OR_RETURN(const ordered_json tools, openai::ToolsInOrder(text, kBody));
  std::optional<openai::NamedPrefix> prefix = openai::ParseNamedPrefix(value["prefix"], &error, tools.is_null() ? nullptr : &tools);
  if (!prefix) return error.status;
  for (const json& id : value["token_ids"]) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) return InvalidArgument("its token_ids are no token ids");
    prefix->token_ids.push_back(id.get<int32_t>());
  }
  Record record = {.key = value["key"], .name = value["name"], .created = value["created"], .prefix = *std::move(prefix)};
  if (is("expires", &json::is_number_integer)) record.expires = value["expires"].get<int64_t>();
  for (const int64_t second : {record.created, record.expires.value_or(0)}) {
    if (second < 0 || second > kLastSecond) return InvalidArgument(fmt::format("its time is {}", second));
  }
  COPPICE_RETURN_IF_ERROR(openai::CheckPrefixName(record.name));
  return record;
}

}  // namespace

PrefixStore::PrefixStore(Engine* engine, PrefixStoreOptions options)
    : engine_(*engine), options_(std::move(options)), worker_([this](const std::stop_token& stop) { Work(stop); }) {}

PrefixStore::~PrefixStore() = default;

// ------------------------------------------------------------------------------------------------------------------- requests

void PrefixStore::Put(const std::string& key, const std::string& name, openai::NamedPrefix prefix, OnEnd on_end) {
  const Id id(key, name);
  auto computed = std::make_shared<Computed>();
  computed->id = id;
  computed->on_end = std::move(on_end);
  Status refused;
  {
    const std::lock_guard lock(mutex_);
    DropExpired();
    const auto tokens = static_cast<int64_t>(prefix.token_ids.size());
    refused = CheckRoom(id, tokens);
    if (refused.ok()) computing_[id] = tokens;
    computed->entry.pin = fmt::format("served {}", ++next_pin_);
  }
  if (!refused.ok()) return computed->on_end(refused, 0);
  Request request{.prompt_ids = prefix.token_ids, .max_tokens = 1};
  request.ignore_eos = true;
  request.cache_salt = prefix.cache_salt;
  request.cache_private_begin = prefix.cache_private_begin;
  request.pin_prompt_as = computed->entry.pin;
  computed->entry.prefix = std::make_shared<const openai::NamedPrefix>(std::move(prefix));
  request.on_event = [this, computed](const StreamEvent& event) {
    computed->cached = event.cached_tokens;
    if (event.finish_reason == FinishReason::kError) computed->status = event.status;
    if (!event.request_done) return;
    const std::lock_guard lock(mutex_);
    computed_.push_back(std::move(*computed));
    wake_.notify_one();
  };
  const Result<RequestId> submitted = engine_.Submit(std::move(request));
  if (submitted.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    computing_.erase(id);
  }
  computed->on_end(submitted.status(), 0);
}

Status PrefixStore::CheckRoom(const Id& id, int64_t tokens) const {
  if (computing_.contains(id)) return ResourceExhausted("a prefix of this name is being computed; send this one again later");
  int64_t pinned = tokens;
  int32_t of_key = 1;
  const auto count = [&](const Id& other, int64_t size) {
    if (other == id) return;  // replaced
    pinned += size;
    of_key += other.first == id.first;
  };
  for (const auto& [other, entry] : entries_) count(other, std::ssize(entry.prefix->token_ids));
  for (const auto& [other, size] : computing_) count(other, size);
  if (of_key > options_.max_per_key)
    return ResourceExhausted(fmt::format("there are {} prefixes already, which is the most; delete one", options_.max_per_key));
  if (pinned <= options_.max_tokens) return OkStatus();
  return ResourceExhausted(
      fmt::format("the prefix has {} tokens and those that are kept {}, expected {} at most in all; delete one, or give the server "
                  "more --kv-cache",
                  tokens, pinned - tokens, options_.max_tokens));
}

std::optional<PrefixStore::Info> PrefixStore::Get(const std::string& key, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find({key, name});
  if (found == entries_.end() || (found->second.expires && *found->second.expires <= Clock::now())) return std::nullopt;
  return InfoOf(name, found->second);
}

std::vector<PrefixStore::Info> PrefixStore::List(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  std::vector<Info> list;
  for (const auto& [id, entry] : entries_) {
    if (id.first == key && (!entry.expires || *entry.expires > Clock::now())) list.push_back(InfoOf(id.second, entry));
  }
  return list;
}

bool PrefixStore::Delete(const std::string& key, const std::string& name) {
  const std::lock_guard lock(mutex_);
  DropExpired();
  const auto found = entries_.find({key, name});
  if (found == entries_.end()) return false;
  LetGo(found);
  return true;
}

PrefixStore::Info PrefixStore::InfoOf(const std::string& name, const Entry& entry) const {
  Info info = {.name = name, .prefix = entry.prefix, .created = Seconds(entry.created), .saved = !entry.file.empty()};
  if (entry.expires) info.expires = Seconds(*entry.expires);
  return info;
}

// --------------------------------------------------------------------------------------------------------------------- worker

void PrefixStore::Work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    DropExpired();
    auto next = Clock::now() + std::chrono::hours(1);
    for (const auto& [id, entry] : entries_) next = std::min(next, entry.expires.value_or(next));
    wake_.wait_until(lock, stop, next, [this] { return !computed_.empty(); });
    while (!computed_.empty()) {
      Computed computed = std::move(computed_.front());
      computed_.pop_front();
      lock.unlock();
      Finish(std::move(computed));
      lock.lock();
    }
  }
}

void PrefixStore::Finish(Computed computed) {
  Entry& entry = computed.entry;
  Result<Info> result = computed.status.ok() ? Result<Info>(Info()) : Result<Info>(computed.status);
  if (result.ok()) {
    entry.created = Clock::now();
    if (const std::optional<double> ttl = entry.prefix->ttl_seconds)
      entry.expires = entry.created + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*ttl));
    if (!options_.folder.empty()) {
      const Status saved = Save(computed.id, &entry);
      if (!saved.ok()) spdlog::warn("a prefix will not outlive the server: {}", saved.message());
    }
    result = InfoOf(computed.id.second, entry);
  }
  {
    const std::lock_guard lock(mutex_);
    computing_.erase(computed.id);
    if (result.ok()) {
      if (const auto old = entries_.find(computed.id); old != entries_.end()) LetGo(old);
      entries_.emplace(computed.id, std::move(entry));
    }
  }
  computed.on_end(std::move(result), computed.cached);
}

void PrefixStore::LetGo(std::map<Id, Entry>::iterator entry) {
  (void)engine_.Unpin(entry->second.pin);
  RemoveFiles(entry->second.file);
  entries_.erase(entry);
}

void PrefixStore::DropExpired() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->second.expires && *entry->second.expires <= Clock::now()) LetGo(entry);
    entry = next;
  }
}

// --------------------------------------------------------------------------------------------------------------------- folder

std::string PrefixStore::PathOf(const std::string& file, const char* suffix) const {
  return (fs::path(options_.folder) / (file + suffix)).string();
}

// The record comes last: without it, what lies there is no prefix.
Status PrefixStore::Save(const Id& id, Entry* entry) const {
  const std::string file = RandomName();  // one of a prefix that is replaced stays until the new one is complete
  COPPICE_RETURN_IF_ERROR(engine_.SavePrefix(entry->pin, PathOf(file, kKv)));
  ordered_json record = {{"key", id.first}, {"name", id.second}, {"created", Seconds(entry->created)}};
  if (entry->expires) record["expires"] = Seconds(*entry->expires);
  record["prefix"] = openai::ToBody(*entry->prefix);
  record["token_ids"] = entry->prefix->token_ids;
  const Status written = ReplaceFile(PathOf(file, kRecord), record.dump() + "\n");
  if (!written.ok()) {
    RemoveFiles(file);
    return written;
  }
  entry->file = file;
  return OkStatus();
}

void PrefixStore::RemoveFiles(const std::string& file) const {
  if (file.empty()) return;
  std::error_code ignored;
  for (const char* suffix : {kRecord, kKv}) fs::remove(PathOf(file, suffix), ignored);
}

Status PrefixStore::Restore() {
  if (options_.folder.empty()) return OkStatus();
  COPPICE_RETURN_IF_ERROR(PrepareFolder(options_.folder));
  std::error_code error;
  std::vector<std::string> files;
  for (const fs::directory_entry& file : fs::directory_iterator(options_.folder, error)) {
    if (file.path().extension() == kRecord) files.push_back(file.path().stem().string());
  }
  if (error) return InvalidArgument(fmt::format("prefixes cannot be kept in {}: {}", options_.folder, error.message()));
  std::ranges::sort(files);
  for (const std::string& file : files) {
    if (const Status loaded = Load(file); !loaded.ok())
      spdlog::warn("{} is left as it is: {}", PathOf(file, kRecord), loaded.message());
  }
  return OkStatus();
}

Status PrefixStore::Load(const std::string& file) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadRecordText(PathOf(file, kRecord)));
  COPPICE_ASSIGN_OR_RETURN(Record record, ParseRecord(text));
  const Id id(record.key, record.name);
  Entry entry = {.created = Clock::time_point(std::chrono::seconds(record.created)), .file = file};
  if (record.expires) entry.expires = Clock::time_point(std::chrono::seconds(*record.expires));
  const std::lock_guard lock(mutex_);
  const auto other = entries_.find(id);  // the server ended while one replaced the other
  if ((entry.expires && *entry.expires <= Clock::now()) || (other != entries_.end() && other->second.created >= entry.created)) {
    RemoveFiles(file);
    return OkStatus();
  }
  COPPICE_RETURN_IF_ERROR(CheckRoom(id, std::ssize(record.prefix.token_ids)));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadPrefixTokens(PathOf(file, kKv)));
  if (tokens != record.prefix.token_ids) return DataLoss("its token_ids are not the tokens of its KV");
  entry.pin = fmt::format("served {}", ++next_pin_);
  COPPICE_RETURN_IF_ERROR(engine_.LoadPrefix(entry.pin, PathOf(file, kKv)));
  entry.prefix = std::make_shared<const openai::NamedPrefix>(std::move(record.prefix));
  spdlog::info("a prefix of {} tokens is there again", entry.prefix->token_ids.size());
  if (other != entries_.end()) LetGo(other);
  entries_.emplace(id, std::move(entry));
  return OkStatus();
}

}  // namespace coppice::server
