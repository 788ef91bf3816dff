// The wait of a request whose output has a form: until this is compiled. Ends with its client. Layer:
// server.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "grammar/compile_queue.h"
#include "server/http.h"

namespace coppice::server {

class CompileCall : public std::enable_shared_from_this<CompileCall> {
 public:
  struct Parts {
    CompileQueue* queue = nullptr;  // outlives the call
    std::string key;
    GrammarSource source;
    std::optional<CompileQueue::Clock::time_point> deadline;
    std::shared_ptr<Responder> responder;
    CompileQueue::Done on_compiled;  // as of CompileQueue::Compile; CANCELLED: the client left
  };
  static void Start(Parts parts);

 private:
  explicit CompileCall(Parts parts) : parts_(std::move(parts)) {}
  void Submit();
  void Cancel();

  Parts parts_;
  std::mutex mutex_;
  CompileQueue::Ticket ticket_ = 0;
  bool gone_ = false;
};

}  // namespace coppice::server
