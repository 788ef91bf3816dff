// A fixed set of workers that run one loop at a time. Built for decode steps: hundreds of short loops a step, a few
// microseconds apart, so workers spin briefly before they sleep.
// Layer: core.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "coppice/core/executor.h"
#include "coppice/core/status.h"

namespace coppice {

// Cores that this process may use.
int AvailableCores();

// `num_threads` workers, of which the calling thread is worker 0. One ParallelFor at a time; a second thread that calls while
// one runs is a bug. Thread-compatible.
class ThreadPool final : public Executor {
 public:
  static constexpr int kMaxThreads = 4096;

  // num_threads 0: one per core this process may use. INVALID_ARGUMENT outside 0..kMaxThreads, RESOURCE_EXHAUSTED if the system
  // starts fewer.
  static Result<std::unique_ptr<ThreadPool>> Create(int num_threads = 0);
  // As Create, for numbers that a program chose itself. Throws std::system_error if the system starts fewer.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_workers() const override { return static_cast<int>(threads_.size()) + 1; }
  // Runs task.Run(i, worker) for each i in [0, count) once, in increasing order of start, dynamically; returns when all are done.
  // An exception of a task on any worker is thrown here then; of several exceptions one.
  void ParallelFor(int64_t count, TaskRef task) override;

 private:
  void Stop();
  void WorkerLoop(int worker);
  void Drain(int worker);
  void RunOne(int64_t index, int worker);

  std::vector<std::thread> threads_;
  // The loop at hand. Written by the caller while nothing is left to hand out and nothing runs; read after an index was drawn.
  TaskRef task_;
  int64_t count_ = 0;
  alignas(64) std::atomic<int64_t> left_{0};    // indices not handed out yet; drawing one makes the loop's caller wait for it
  alignas(64) std::atomic<int64_t> done_{0};    // indices that have run
  alignas(64) std::atomic<uint32_t> epoch_{0};  // grows by one per loop; idle workers wait for a change
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // written by the worker that set failed_, read once all indices are done
};

}  // namespace coppice
