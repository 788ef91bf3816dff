#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "core/await_change.h"

namespace coppice {

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

Result<std::unique_ptr<ThreadPool>> ThreadPool::Create(int num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return InvalidArgument("num_threads is " + std::to_string(num_threads) + "; expected 0 (one per core) to " +
                           std::to_string(kMaxThreads));
  }
  try {
    return std::make_unique<ThreadPool>(num_threads);
  } catch (const std::system_error& e) {
    return Status(StatusCode::kResourceExhausted, "the system does not start " + std::to_string(num_threads) +
                                                      " threads: " + e.what() + "; ask for fewer or raise the limit (ulimit -u)");
  }
}

ThreadPool::ThreadPool(int num_threads) {
  const int total = num_threads > 0 ? num_threads : AvailableCores();
  threads_.reserve(total - 1);
  try {
    for (int worker = 1; worker < total; ++worker) threads_.emplace_back([this, worker] { WorkerLoop(worker); });
  } catch (...) {
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::RunOne(int64_t index, int worker) {
  try {
    task_.Run(index, worker);
  } catch (...) {  // out of memory: a thread that let it pass would end the process
    if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
  }
}

// The caller waits for indices that were handed out, never for workers: one that the system has not scheduled yet delays no caller.
void ThreadPool::Drain(int worker) {
  for (int64_t left = left_.load(std::memory_order_acquire); left > 0;) {
    if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acquire)) continue;
    const int64_t count = count_;  // may not be read once the last index is done
    RunOne(count - left, worker);
    if (done_.fetch_add(1, std::memory_order_release) + 1 == count) done_.notify_one();
    left = left_.load(std::memory_order_acquire);
  }
}

void ThreadPool::ParallelFor(int64_t count, TaskRef task) {
  if (count <= 0) return;
  if (threads_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) task.Run(i, 0);
    return;
  }
  task_ = task;
  count_ = count;
  done_.store(0, std::memory_order_relaxed);
  left_.store(count, std::memory_order_release);  // publishes task_ and count_
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  Drain(0);
  for (int64_t done; (done = done_.load(std::memory_order_acquire)) != count;) AwaitChange(done_, done);
  if (failed_.exchange(false, std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::WorkerLoop(int worker) {
  for (uint32_t seen = 0;;) {
    seen = AwaitChange(epoch_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    Drain(worker);
  }
}

}  // namespace coppice
