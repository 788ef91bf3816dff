// The CPU as a device: host memory, no streams, work done on return. Layer: core.
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/available_memory.h"
#include "core/buffer.h"
#include "core/check.h"
#include "core/device.h"

namespace coppice {
namespace {

class CpuEvent final : public Event {
 public:
  std::chrono::steady_clock::time_point recorded;
};
class CpuStream final : public OwnedStream {
 public:
  Stream get() const override { return nullptr; }
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(Executor* executor) : executor_(executor) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  int ordinal() const override { return 0; }
  std::string name() const override { return "CPU"; }
  Executor* executor() const override { return executor_; }
  int compute_capability() const override { return 0; }

  Result<MemoryInfo> GetMemoryInfo() const override {
    MemoryInfo info;
    std::ifstream meminfo("/proc/meminfo");
    for (std::string line; std::getline(meminfo, line);) {
      if (line.starts_with("MemTotal:")) info.total_bytes = std::stoll(line.substr(9)) * 1024;
    }
    info.free_bytes = AvailableMemoryBytes();
    if (info.free_bytes == 0) return Unavailable("/proc/meminfo does not say how much memory is available");
    return info;
  }

  Result<DeviceMemory> Allocate(size_t bytes, MemoryKind kind) override {
    COPPICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(bytes));
    auto shared = std::make_shared<Buffer>(std::move(buffer));
    if (kind == MemoryKind::kWeights || kind == MemoryKind::kKv) {
      const std::lock_guard lock(mutex_);
      std::erase_if(releasable_, [](const Releasable& other) { return other.buffer.expired(); });
      releasable_.push_back({kind, shared});
    }
    std::byte* const data = shared->data();
    return DeviceMemory(DeviceMemory::Owner(data, [shared](std::byte*) {}), bytes);
  }

  Status Release(MemoryKind kind, bool keep_content) override {
    if (keep_content) return OkStatus();
    const std::lock_guard lock(mutex_);
    for (const Releasable& memory : releasable_) {
      if (const auto buffer = memory.buffer.lock(); buffer != nullptr && memory.kind == kind) buffer->Discard();
    }
    return OkStatus();
  }
  Status Restore(MemoryKind) override { return OkStatus(); }

  Status Copy(void* to, const void* from, size_t bytes, Stream) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return OkStatus();
  }
  Status Zero(void* to, size_t bytes, Stream) override {
    if (bytes > 0) std::memset(to, 0, bytes);
    return OkStatus();
  }

  Result<std::unique_ptr<OwnedStream>> CreateStream() override { return std::unique_ptr<OwnedStream>(new CpuStream); }
  Result<std::unique_ptr<Event>> CreateEvent() override { return std::unique_ptr<Event>(new CpuEvent); }
  Result<std::unique_ptr<Event>> CreateTimedEvent() override { return CreateEvent(); }
  Status Record(Event& event, Stream) override {
    static_cast<CpuEvent&>(event).recorded = std::chrono::steady_clock::now();
    return OkStatus();
  }
  Status Wait(Stream, const Event&) override { return OkStatus(); }
  Status Synchronize(const Event&) override { return OkStatus(); }
  Status Synchronize(Stream) override { return OkStatus(); }
  Result<bool> IsDone(const Event&) override { return true; }
  Result<double> SecondsBetween(const Event& begin, const Event& end) override {
    const auto passed = static_cast<const CpuEvent&>(end).recorded - static_cast<const CpuEvent&>(begin).recorded;
    return std::chrono::duration<double>(passed).count();
  }

  Status BeginCapture(Stream) override { return NoGraphs(); }
  Result<std::unique_ptr<Graph>> EndCapture(Stream) override { return NoGraphs(); }
  Status Launch(const Graph&, Stream) override { return NoGraphs(); }

 private:
  static Status NoGraphs() { return Unimplemented("a CPU has no graphs: launch the work itself"); }

  struct Releasable {
    MemoryKind kind;
    std::weak_ptr<Buffer> buffer;
  };

  Executor* executor_;
  std::mutex mutex_;  // guards what follows
  std::vector<Releasable> releasable_;
};

}  // namespace

std::unique_ptr<Device> Device::CreateCpu(Executor* executor) { return std::make_unique<CpuDevice>(executor); }

}  // namespace coppice
