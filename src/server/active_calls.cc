#include "server/active_calls.h"

namespace coppice::server {

ActiveCalls::ActiveCalls() : table_(std::make_shared<Table>()) {}

ActiveCalls::Entry ActiveCalls::Add(Generation generation) {
  const std::lock_guard lock(table_->mutex);
  table_->active.emplace(table_->next, std::move(generation));
  return Entry(table_, table_->next++);
}

ActiveCalls::Entry::~Entry() {
  if (table_ == nullptr) return;
  const std::lock_guard lock(table_->mutex);
  table_->active.erase(number_);
}

std::vector<ActiveCalls::Found> ActiveCalls::Find(const std::string_view* id, const std::string* key, bool with_scores) const {
  std::vector<Found> found;
  const std::lock_guard lock(table_->mutex);
  for (const auto& [number, active] : table_->active) {
    if (key != nullptr && *key != active.key) continue;
    if (active.is_score && !with_scores) continue;
    std::shared_ptr<openai::RequestDriver> call = active.call.lock();
    if (call == nullptr) continue;
    if (id == nullptr || (!active.id.empty() && (*id == active.id || id->ends_with("-" + active.id)))) {
      found.push_back({.call = std::move(call), .prompt = {}});
      continue;
    }
    for (size_t i = 0; i < active.client_ids.size(); ++i) {
      if (!id->empty() && *id == active.client_ids[i]) found.push_back({.call = call, .prompt = i});
    }
  }
  return found;
}

int32_t ActiveCalls::Abort(std::string_view id, const std::string* key) const {
  const std::vector<Found> found = Find(&id, key, /*with_scores=*/false);
  for (const Found& one : found) {
    if (one.prompt) {
      one.call->AbortRequest(*one.prompt);
    } else {
      one.call->Abort(OkStatus());
    }
  }
  return static_cast<int32_t>(found.size());
}

int32_t ActiveCalls::AbortAll(const std::string* key) const {
  const std::vector<Found> found = Find(nullptr, key, /*with_scores=*/false);
  for (const Found& one : found) one.call->Abort(OkStatus());
  return static_cast<int32_t>(found.size());
}

int32_t ActiveCalls::FailAll(const Status& why) const {
  const std::vector<Found> found = Find(nullptr, nullptr, /*with_scores=*/true);
  for (const Found& one : found) one.call->Abort(why);
  return static_cast<int32_t>(found.size());
}

}  // namespace coppice::server
