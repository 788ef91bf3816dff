// Work that may take too long or too much memory, in children of a process that was forked while the program was small: a child can
// be ended at any moment, whatever it does, and what it breaks is its own. Knows nothing of the work.
// Layer: grammar.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "core/file.h"

namespace coppice {

// Work of the server's processes. Called in them, by one thread each. An exception is an error of that call.
class ForkedWork {
 public:
  virtual ~ForkedWork() = default;
  // In the process that all children are forked from: what they find done.
  virtual void Prepare(std::string_view data) = 0;
  // In a child of its own, so that no call sees what another one left.
  virtual std::string Run(std::string_view input) = 0;
};

struct ForkServerOptions {
  std::string name = "fork-server";           // of its processes
  double cpu_seconds = 10;                    // of a call of Run
  int64_t memory_bytes = int64_t{256} << 20;  // of a call, beside what Prepare made; sanitizers know no limit
  int niceness = 5;                           // the program's own threads come first
};

// Thread-safe.
class ForkServer {
 public:
  // REQUIRES: the program has no other threads yet, or none that hold locks of the work's libraries. RESOURCE_EXHAUSTED or
  // INTERNAL: the system gives no process.
  static Result<std::unique_ptr<ForkServer>> Start(std::unique_ptr<ForkedWork> work, ForkServerOptions options = {});
  ForkServer(const ForkServer&) = delete;
  // REQUIRES: calls have returned. The processes end with it, as they do where the program is killed.
  ~ForkServer();

  // Returns when ForkedWork::Prepare has.
  Status Prepare(std::string_view data);
  // What ForkedWork::Run returns. DEADLINE_EXCEEDED: it took too much CPU time; RESOURCE_EXHAUSTED: too much memory; CANCELLED:
  // `stop` was requested, at once; UNAVAILABLE: the system gives no process; INTERNAL: an exception of Run, or the child crashed
  // or was killed. Where the process that it is forked from was killed, there is another one, prepared again.
  Result<std::string> Run(std::string_view input, std::stop_token stop = {});

 private:
  ForkServer(pid_t keeper, FileDescriptor control, ForkServerOptions options)
      : keeper_(keeper), control_(std::move(control)), options_(std::move(options)) {}
  Result<std::string> Call(char kind, std::string_view input, const std::stop_token& stop);

  const pid_t keeper_;  // of the process that children are forked from
  std::mutex mutex_;    // of messages on control_, and of prepared_
  FileDescriptor control_;
  std::shared_ptr<const std::string> prepared_;  // null: nothing is
  const ForkServerOptions options_;
};

}  // namespace coppice
