// Threads as Coppice sees them: one loop at a time over a set of workers that the caller owns.
// Layer: public API. src/core/thread_pool.h has the implementation that the engine uses; other engines bring their own.
#pragma once

#include <cstdint>
#include <type_traits>

namespace coppice {

// A loop body without ownership: valid while the call it is passed to runs.
class TaskRef {
 public:
  TaskRef() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>)
      TaskRef(F&& f)  // NOLINT(google-explicit-constructor): passing a lambda is the point
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int64_t index, int worker) { (*static_cast<std::remove_reference_t<F>*>(object))(index, worker); }) {
  }
  void Run(int64_t index, int worker) const { call_(object_, index, worker); }

 private:
  void* object_ = nullptr;
  void (*call_)(void*, int64_t, int) = nullptr;
};

// Threads, owned by the caller. ParallelFor runs task(i, worker) once for each i in [0, count), starts them in increasing order,
// with worker in [0, num_workers()), and returns when all are done.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int num_workers() const = 0;
  virtual void ParallelFor(int64_t count, TaskRef task) = 0;
};

}  // namespace coppice
