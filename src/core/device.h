// One device: its memory, streams, events and graphs. The only place above the CUDA runtime that allocates, so that the KV pool,
// weights, activations, sampler state and step inputs stand on the same ground on every device. On a CPU, device memory is host
// memory, a stream is null and every call has done its work when it returns.
// Layer: core. cpu/cpu_device.cc and cuda/cuda_device.cc implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "coppice/core/executor.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice {

enum class MemoryKind : uint8_t {
  kDevice,      // what kernels read and write; on a CPU the host's
  kHostPinned,  // page-locked: copies from and to it are asynchronous; on a CPU the host's
  kWeights,     // these two as kDevice; Device::Release gives them back for a time
  kKv,
};

// Owned memory of one device, which outlives it. Movable, not copyable; thread-compatible.
class DeviceMemory {
 public:
  using Owner = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;  // gives the memory back

  DeviceMemory() = default;
  DeviceMemory(Owner owner, size_t bytes) : owner_(std::move(owner)), size_(bytes) {}

  std::byte* data() const { return owner_.get(); }
  size_t size() const { return size_; }
  template <class T>
  T* As() const {
    return reinterpret_cast<T*>(owner_.get());
  }

 private:
  Owner owner_;
  size_t size_ = 0;
};

// A point in a stream's work. The device outlives it.
class Event {
 public:
  virtual ~Event() = default;
};

// Captured work that can be launched again and again. The memory that it names outlives its launches.
class Graph {
 public:
  virtual ~Graph() = default;
};

// An owned stream. Destruction does not wait for its work.
class OwnedStream {
 public:
  virtual ~OwnedStream() = default;
  virtual Stream get() const = 0;
};

// Thread-safe, but for a stream that captures: calls on it come from one thread. Errors: RESOURCE_EXHAUSTED (memory, with the bytes
// asked for and the bytes free), UNAVAILABLE (the device is lost: every later call answers the same), INTERNAL (a call that failed,
// named).
class Device {
 public:
  // `executor` outlives the device.
  static std::unique_ptr<Device> CreateCpu(Executor* executor);
  // UNAVAILABLE if not built, no driver or one older than the toolkit, no such device, or compute capability below 8.0: each named.
  static Result<std::unique_ptr<Device>> CreateCuda(int ordinal);
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual int ordinal() const = 0;             // CUDA's; 0 for a CPU
  virtual std::string name() const = 0;        // "NVIDIA H200"
  virtual Executor* executor() const = 0;      // null unless a CPU
  virtual int compute_capability() const = 0;  // 90 for Hopper; 0 for a CPU
  // Makes it the calling thread's device, for libraries that take that one. Calls of this class need it not.
  virtual Status MakeCurrent() { return OkStatus(); }

  struct MemoryInfo {
    int64_t total_bytes = 0, free_bytes = 0;
  };
  // CPU: what the system could give without swapping.
  virtual Result<MemoryInfo> GetMemoryInfo() const = 0;

  // Zero-filled, at least 256-byte aligned (64 on a CPU). 0 bytes: an empty memory. May synchronise the device.
  virtual Result<DeviceMemory> Allocate(size_t bytes, MemoryKind kind = MemoryKind::kDevice) = 0;

  // UNIMPLEMENTED where Release cannot do anything: a GPU without virtual memory management.
  virtual Status CheckReleasable() const { return OkStatus(); }
  // Gives all memory of a kind, kWeights or kKv, back to the system until Restore. Addresses stay, so that captured graphs and what
  // else knows them outlive both. With `keep_content` it lies in host memory meanwhile, where a CPU's is already; else it is zero
  // after Restore. An error leaves some of it released: call Restore. REQUIRES: CheckReleasable; no work that uses it is under way.
  virtual Status Release(MemoryKind kind, bool keep_content) = 0;
  // RESOURCE_EXHAUSTED where others have taken the memory: it can be called again.
  virtual Status Restore(MemoryKind kind) = 0;

  // `to` and `from` do not overlap; each may be device or host memory. Host memory that is not page-locked makes the call wait.
  virtual Status Copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  virtual Status Zero(void* to, size_t bytes, Stream stream) = 0;

  virtual Result<std::unique_ptr<OwnedStream>> CreateStream() = 0;
  virtual Result<std::unique_ptr<Event>> CreateEvent() = 0;
  // One for SecondsBetween.
  virtual Result<std::unique_ptr<Event>> CreateTimedEvent() = 0;
  virtual Status Record(Event& event, Stream stream) = 0;
  // Work that comes to `stream` from now on waits for what the event recorded last; the host does not.
  virtual Status Wait(Stream stream, const Event& event) = 0;
  // The host waits.
  virtual Status Synchronize(const Event& event) = 0;
  virtual Status Synchronize(Stream stream) = 0;
  // Whether what the event recorded last is done; nothing waits.
  virtual Result<bool> IsDone(const Event& event) = 0;
  // From what `begin` recorded last to what `end` did, both timed and done.
  virtual Result<double> SecondsBetween(const Event& begin, const Event& end) = 0;

  // Between the two, work on `stream` is recorded and not done. UNIMPLEMENTED on a CPU.
  virtual Status BeginCapture(Stream stream) = 0;
  virtual Result<std::unique_ptr<Graph>> EndCapture(Stream stream) = 0;
  virtual Status Launch(const Graph& graph, Stream stream) = 0;
};

// The work that `enqueue` puts on `stream`, recorded and not done. After an error too, of memory among them, the stream has left
// the capture.
Result<std::unique_ptr<Graph>> CaptureGraph(Device& device, Stream stream, const std::function<Status()>& enqueue);

}  // namespace coppice
