#include "server/active_calls.h"

namespace coppice::server {

ActiveCalls::ActiveCalls() : table_(std::make_shared<Table>()) {}

ActiveCalls::Entry ActiveCalls::Add(std::string id, std::weak_ptr<openai::RequestDriver> call) {
  const std::lock_guard lock(table_->mutex);
  table_->active.emplace(table_->next, Active{std::move(id), std::move(call)});
  return Entry(table_, table_->next++);
}

ActiveCalls::Entry::~Entry() {
  if (table_ == nullptr) return;
  const std::lock_guard lock(table_->mutex);
  table_->active.erase(number_);
}

template <class Visit>
int32_t ActiveCalls::ForEach(const std::string_view* id, Visit visit) const {
  std::vector<std::shared_ptr<openai::RequestDriver>> found;
  {
    const std::lock_guard lock(table_->mutex);
    for (const auto& [number, active] : table_->active) {
      const bool is_wanted = id == nullptr || (!active.id.empty() && (*id == active.id || id->ends_with("-" + active.id)));
      if (!is_wanted) continue;
      if (std::shared_ptr<openai::RequestDriver> call = active.call.lock()) found.push_back(std::move(call));
    }
  }
  for (const std::shared_ptr<openai::RequestDriver>& call : found) visit(*call);
  return static_cast<int32_t>(found.size());
}

int32_t ActiveCalls::Abort(std::string_view id) const {
  return ForEach(&id, [](openai::RequestDriver& call) { call.Abort(OkStatus()); });
}

int32_t ActiveCalls::AbortAll() const {
  return ForEach(nullptr, [](openai::RequestDriver& call) { call.Abort(OkStatus()); });
}

int32_t ActiveCalls::FailAll(const Status& why) const {
  return ForEach(nullptr, [&](openai::RequestDriver& call) { call.Abort(why); });
}

}  // namespace coppice::server
