#include "server/compile_call.h"

#include <utility>

namespace coppice::server {

void CompileCall::Start(Parts parts) {
  const std::shared_ptr<CompileCall> call(new CompileCall(std::move(parts)));
  // First: the answer once it is compiled has a callback of its own.
  call->parts_.responder->WhenGone([weak = call->weak_from_this()] {
    if (const std::shared_ptr<CompileCall> call = weak.lock()) call->Cancel();
  });
  call->Submit();
}

void CompileCall::Submit() {
  const CompileQueue::Ticket ticket =
      parts_.queue->Compile(parts_.key, std::move(parts_.source), parts_.deadline,
                            [self = shared_from_this()](auto compiled) { self->parts_.on_compiled(std::move(compiled)); });
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    ticket_ = ticket;
    gone = gone_;
  }
  if (gone) parts_.queue->Cancel(ticket);
}

void CompileCall::Cancel() {
  CompileQueue::Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    ticket = ticket_;
  }
  parts_.queue->Cancel(ticket);
}

}  // namespace coppice::server
