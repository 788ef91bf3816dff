#include "server/prefix_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "core/quoted.h"
#include "engine/prefix_file.h"
#include "openai/request.h"
#include "server/record.h"

namespace coppice::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kKv = ".safetensors";

constexpr int64_t kLastSecond = int64_t{1} << 33;  // of records: the year 2242; a clock of nanoseconds holds it

int64_t Seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

// The fields of a record; `prefix` is read from the body of the request that made it.
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

PrefixStore::PrefixStore(Engine* engine, const Access* access, PrefixStoreOptions options)
    : engine_(*engine),
      access_(*access),
      options_(std::move(options)),
      worker_([this](const std::stop_token& stop) { Work(stop); }) {}

PrefixStore::~PrefixStore() = default;

// ------------------------------------------------------------------------------------------------------------------- requests

Status PrefixStore::CheckTtl(const openai::NamedPrefix& prefix) const {
  const double most = options_.max_ttl_seconds;
  if (most <= 0 || prefix.ttl_seconds.value_or(0) <= most) return OkStatus();
  return InvalidArgument(fmt::format("ttl_seconds is {}, expected {} at most (--max-prefix-ttl)", *prefix.ttl_seconds, most));
}

std::optional<PrefixStore::Clock::time_point> PrefixStore::EndOf(Clock::time_point created,
                                                                 std::optional<double> ttl_seconds) const {
  const double most = options_.max_ttl_seconds;
  if (most > 0) ttl_seconds = std::min(ttl_seconds.value_or(most), most);
  if (!ttl_seconds) return std::nullopt;
  return created + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*ttl_seconds));
}

void PrefixStore::Put(const std::string& key, const std::string& name, openai::NamedPrefix prefix, OnEnd on_end) {
  const Id id(key, name);
  auto computed = std::make_shared<Computed>();
  computed->id = id;
  computed->on_end = std::move(on_end);
  Status refused;
  {
    const std::lock_guard lock(mutex_);
    DropExpired();
    refused = CheckRoom(id, prefix);
    if (refused.ok()) computing_[id] = {.tokens = std::ssize(prefix.token_ids), .is_public = prefix.is_public};
    computed->entry.pin = fmt::format("served {}", ++next_pin_);
  }
  if (!refused.ok()) return computed->on_end({.made = refused});
  Request request{.prompt_ids = prefix.token_ids, .max_tokens = 0};
  request.cache_salt = prefix.cache_salt;
  request.cache_private_begin = prefix.cache_private_begin;
  request.cache_tenant = access_.TenantOf(key, prefix);
  request.share_of = key;
  request.pin_prompt_as = computed->entry.pin;
  computed->entry.prefix = std::make_shared<const openai::NamedPrefix>(std::move(prefix));
  request.on_event = [this, computed](const StreamEvent& event) {
    computed->cached = event.cached_tokens;
    computed->begun |= event.begun;
    if (event.finish_reason == FinishReason::kError) computed->status = event.status;
    if (event.finish_reason == FinishReason::kCancelled)
      computed->status =
          Unavailable("a pause of the engine or an update of weights ended the prefix before its KV was there; send it again");
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
  computed->on_end({.made = submitted.status()});
}

Status PrefixStore::CheckRoom(const Id& id, const openai::NamedPrefix& prefix) const {
  if (computing_.contains(id)) return ResourceExhausted("a prefix of this name is being computed; send this one again later");
  if (prefix.is_public) COPPICE_RETURN_IF_ERROR(CheckPublicName(id));
  const int64_t tokens = std::ssize(prefix.token_ids);
  int64_t pinned = tokens, pinned_of_key = tokens;
  int32_t of_key = 1;
  const auto count = [&](const Id& other, int64_t size) {
    if (other == id) return;  // replaced
    pinned += size;
    if (other.first != id.first) return;
    pinned_of_key += size;
    ++of_key;
  };
  for (const auto& [other, entry] : entries_) count(other, std::ssize(entry.prefix->token_ids));
  for (const auto& [other, computing] : computing_) count(other, computing.tokens);
  if (of_key > options_.max_per_key)
    return ResourceExhausted(fmt::format("there are {} prefixes already, which is the most; delete one", options_.max_per_key));
  const int64_t most_of_key = options_.max_tokens_per_key > 0 ? options_.max_tokens_per_key : options_.max_tokens;
  if (pinned_of_key > most_of_key) {
    return ResourceExhausted(
        fmt::format("the prefix has {} tokens and those that are kept {}, expected {} at most in all (--max-prefix-tokens); delete "
                    "one, or give the server more --kv-cache",
                    tokens, pinned_of_key - tokens, most_of_key));
  }
  if (pinned <= options_.max_tokens) return OkStatus();
  return ResourceExhausted(
      fmt::format("the prefix has {} tokens, and those of all API keys leave no room for it; try again later, or "
                  "give the server more --kv-cache",
                  tokens));
}

Status PrefixStore::CheckPublicName(const Id& id) const {
  const auto same = [&](const auto& computing) {
    return computing.second.is_public && computing.first.second == id.second && computing.first != id;
  };
  const auto owner = public_owners_.find(id.second);
  const bool taken = (owner != public_owners_.end() && owner->second != id.first) || std::ranges::any_of(computing_, same);
  return taken ? FailedPrecondition("another API key has a public prefix of this name; take another name") : OkStatus();
}

const PrefixStore::Entry* PrefixStore::Find(const std::string& key, const std::string& name) const {
  const auto lives = [](const Entry& entry) { return !entry.expires || *entry.expires > Clock::now(); };
  if (const auto own = entries_.find({key, name}); own != entries_.end() && lives(own->second)) return &own->second;
  const auto owner = public_owners_.find(name);
  if (owner == public_owners_.end()) return nullptr;
  const Entry& entry = entries_.at({owner->second, name});
  return lives(entry) ? &entry : nullptr;
}

std::optional<PrefixStore::Info> PrefixStore::Get(const std::string& key, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const Entry* const found = Find(key, name);
  return found ? std::optional(InfoOf(name, *found)) : std::nullopt;
}

openai::FindNamedPrefix PrefixStore::FinderOf(const std::string& key) const {
  return [this, key](const std::string& name) {
    const std::optional<Info> found = Get(key, name);
    return found ? found->prefix : nullptr;
  };
}

std::vector<PrefixStore::Info> PrefixStore::List(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (auto own = entries_.lower_bound({key, ""}); own != entries_.end() && own->first.first == key; ++own)
    names.insert(own->first.second);
  for (const auto& [name, owner] : public_owners_) names.insert(name);
  std::vector<Info> list;
  for (const std::string& name : names) {
    if (const Entry* const found = Find(key, name)) list.push_back(InfoOf(name, *found));
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
    entry.expires = EndOf(entry.created, entry.prefix->ttl_seconds);
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
      Add(computed.id, std::move(entry));
    }
  }
  computed.on_end({.made = std::move(result), .cached = computed.cached, .begun = computed.begun});
}

void PrefixStore::Add(const Id& id, Entry entry) {
  if (entry.prefix->is_public) public_owners_[id.second] = id.first;
  entries_.emplace(id, std::move(entry));
}

void PrefixStore::LetGo(std::map<Id, Entry>::iterator entry) {
  (void)engine_.Unpin(entry->second.pin);
  RemoveFiles(entry->second.file);
  if (entry->second.prefix->is_public) public_owners_.erase(entry->first.second);
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
  const Status written = ReplaceFile(PathOf(file, kRecordSuffix), record.dump() + "\n");
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
  for (const char* suffix : {kRecordSuffix, kKv}) fs::remove(PathOf(file, suffix), ignored);
}

Status PrefixStore::Restore() {
  if (options_.folder.empty()) return OkStatus();
  COPPICE_RETURN_IF_ERROR(PrepareFolder(options_.folder));
  std::error_code error;
  std::vector<std::string> files;
  for (const fs::directory_entry& file : fs::directory_iterator(options_.folder, error)) {
    if (file.path().extension() == kRecordSuffix) files.push_back(file.path().stem().string());
  }
  if (error) return InvalidArgument(fmt::format("prefixes cannot be kept in {}: {}", options_.folder, error.message()));
  std::ranges::sort(files);
  for (const std::string& file : files) {
    if (const Status loaded = Load(file); !loaded.ok())
      spdlog::warn("{} is left as it is: {}", PathOf(file, kRecordSuffix), loaded.message());
  }
  return OkStatus();
}

Status PrefixStore::Load(const std::string& file) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadRecordText(PathOf(file, kRecordSuffix)));
  COPPICE_ASSIGN_OR_RETURN(Record record, ParseRecord(text));
  const Id id(record.key, record.name);
  Entry entry = {.created = Clock::time_point(std::chrono::seconds(record.created)), .file = file};
  if (record.expires) entry.expires = Clock::time_point(std::chrono::seconds(*record.expires));
  if (const auto end = EndOf(entry.created, std::nullopt)) entry.expires = std::min(entry.expires.value_or(*end), *end);
  if (record.prefix.is_public && !access_.IsAdmin(record.key))
    return FailedPrecondition(fmt::format("it is public, and its API key {} has not role=admin", Quoted(record.key)));
  const std::lock_guard lock(mutex_);
  const auto other = entries_.find(id);  // the server ended while one replaced the other
  if ((entry.expires && *entry.expires <= Clock::now()) || (other != entries_.end() && other->second.created >= entry.created)) {
    RemoveFiles(file);
    return OkStatus();
  }
  COPPICE_RETURN_IF_ERROR(CheckRoom(id, record.prefix));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadPrefixTokens(PathOf(file, kKv)));
  if (tokens != record.prefix.token_ids) return DataLoss("its token_ids are not the tokens of its KV");
  entry.pin = fmt::format("served {}", ++next_pin_);
  // Whose it is, its record says and how keys share now: files of servers that had no keys, or shared, come to the right place.
  COPPICE_RETURN_IF_ERROR(engine_.LoadPrefix(entry.pin, PathOf(file, kKv), access_.TenantOf(record.key, record.prefix)));
  entry.prefix = std::make_shared<const openai::NamedPrefix>(std::move(record.prefix));
  spdlog::info("a prefix of {} tokens is there again", entry.prefix->token_ids.size());
  if (other != entries_.end()) LetGo(other);
  Add(id, std::move(entry));
  return OkStatus();
}

}  // namespace coppice::server
