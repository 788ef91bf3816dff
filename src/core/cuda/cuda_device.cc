// A CUDA device over the runtime API. Layer: core/cuda.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/cuda/releasable_memory.h"
#include "core/cuda/virtual_memory.h"
#include "core/device.h"

namespace coppice {
namespace {

using cuda::CudaStatus;
using cuda::DeviceGuard;
using cuda::ReleasableMemory;

cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaStream final : public OwnedStream {
 public:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}
  ~CudaStream() override { cudaStreamDestroy(stream_); }
  Stream get() const override { return stream_; }

 private:
  cudaStream_t stream_;
};

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  cudaGraphExec_t get() const { return executable_; }

 private:
  cudaGraphExec_t executable_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::string name, int compute_capability)
      : ordinal_(ordinal), name_(std::move(name)), compute_capability_(compute_capability) {
    if (!cuda::VirtualMemory::IsSupported(ordinal)) return;
    weights_.emplace(ordinal);
    kv_.emplace(ordinal);
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  int ordinal() const override { return ordinal_; }
  std::string name() const override { return name_; }
  Executor* executor() const override { return nullptr; }
  int compute_capability() const override { return compute_capability_; }
  Status MakeCurrent() override { return CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"); }

  Result<MemoryInfo> GetMemoryInfo() const override {
    const DeviceGuard guard(ordinal_);
    size_t free = 0, total = 0;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
    return MemoryInfo{.total_bytes = static_cast<int64_t>(total), .free_bytes = static_cast<int64_t>(free)};
  }

  Result<DeviceMemory> Allocate(size_t bytes, MemoryKind kind) override {
    if (bytes == 0) return DeviceMemory();
    const DeviceGuard guard(ordinal_);
    if (ReleasableMemory* const pool = PoolOf(kind)) {
      Result<DeviceMemory> memory = pool->Allocate(bytes);
      if (memory.ok() || memory.status().code() != StatusCode::kResourceExhausted) return memory;
      return ResourceExhausted(OutOfMemoryText(bytes, kind));
    }
    const bool is_host = kind == MemoryKind::kHostPinned;
    void* data = nullptr;
    const cudaError_t error = is_host ? cudaHostAlloc(&data, bytes, cudaHostAllocDefault) : cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // an allocation that failed leaves the context usable
      return ResourceExhausted(OutOfMemoryText(bytes, kind));
    }
    COPPICE_RETURN_IF_ERROR(CudaStatus(error, is_host ? "cudaHostAlloc" : "cudaMalloc"));
    DeviceMemory memory(DeviceMemory::Owner(static_cast<std::byte*>(data),
                                            [is_host, ordinal = ordinal_](std::byte* p) {
                                              const DeviceGuard guard(ordinal);
                                              is_host ? cudaFreeHost(p) : cudaFree(p);
                                            }),
                        bytes);
    if (is_host) {
      std::memset(data, 0, bytes);
    } else {
      COPPICE_RETURN_IF_ERROR(cuda::ZeroAndWait(data, bytes));
    }
    return Result<DeviceMemory>(std::move(memory));
  }

  Status CheckReleasable() const override {
    if (weights_) return OkStatus();
    return Unimplemented(name_ + " or its driver has no virtual memory management, without which its memory cannot be given back");
  }
  Status Release(MemoryKind kind, bool keep_content) override {
    const DeviceGuard guard(ordinal_);
    return PoolOf(kind)->Release(keep_content);
  }
  Status Restore(MemoryKind kind) override {
    const DeviceGuard guard(ordinal_);
    ReleasableMemory* const pool = PoolOf(kind);
    return pool == nullptr ? OkStatus() : pool->Restore();
  }

  Status Copy(void* to, const void* from, size_t bytes, Stream stream) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Of(stream)), "cudaMemcpyAsync");
  }
  Status Zero(void* to, size_t bytes, Stream stream) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaMemsetAsync(to, 0, bytes, Of(stream)), "cudaMemsetAsync");
  }

  Result<std::unique_ptr<OwnedStream>> CreateStream() override {
    const DeviceGuard guard(ordinal_);
    cudaStream_t stream = nullptr;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    return std::unique_ptr<OwnedStream>(new CudaStream(stream));
  }
  Result<std::unique_ptr<Event>> CreateEvent() override { return MakeEvent(cudaEventDisableTiming); }
  Result<std::unique_ptr<Event>> CreateTimedEvent() override { return MakeEvent(cudaEventDefault); }
  Status Record(Event& event, Stream stream) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaEventRecord(static_cast<CudaEvent&>(event).get(), Of(stream)), "cudaEventRecord");
  }
  Status Wait(Stream stream, const Event& event) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaStreamWaitEvent(Of(stream), static_cast<const CudaEvent&>(event).get()), "cudaStreamWaitEvent");
  }
  Status Synchronize(const Event& event) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaEventSynchronize(static_cast<const CudaEvent&>(event).get()), "waiting for an event of the device");
  }
  Status Synchronize(Stream stream) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaStreamSynchronize(Of(stream)), "waiting for a stream of the device");
  }
  Result<bool> IsDone(const Event& event) override {
    const DeviceGuard guard(ordinal_);
    const cudaError_t error = cudaEventQuery(static_cast<const CudaEvent&>(event).get());
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // it counts as an error
      return false;
    }
    COPPICE_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
    return true;
  }
  Result<double> SecondsBetween(const Event& begin, const Event& end) override {
    const DeviceGuard guard(ordinal_);
    float milliseconds = 0;
    COPPICE_RETURN_IF_ERROR(CudaStatus(
        cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(begin).get(), static_cast<const CudaEvent&>(end).get()),
        "cudaEventElapsedTime"));
    return milliseconds / 1e3;
  }

  Status BeginCapture(Stream stream) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaStreamBeginCapture(Of(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  Result<std::unique_ptr<Graph>> EndCapture(Stream stream) override {
    const DeviceGuard guard(ordinal_);
    cudaGraph_t graph = nullptr;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(Of(stream), &graph), "cudaStreamEndCapture"));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    COPPICE_RETURN_IF_ERROR(CudaStatus(error, "cudaGraphInstantiate"));
    return std::unique_ptr<Graph>(new CudaGraph(executable));
  }
  Status Launch(const Graph& graph, Stream stream) override {
    const DeviceGuard guard(ordinal_);
    return CudaStatus(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).get(), Of(stream)), "cudaGraphLaunch");
  }

 private:
  // Null: memory of this kind is never released.
  ReleasableMemory* PoolOf(MemoryKind kind) {
    if (kind == MemoryKind::kWeights && weights_) return &*weights_;
    if (kind == MemoryKind::kKv && kv_) return &*kv_;
    return nullptr;
  }
  Result<std::unique_ptr<Event>> MakeEvent(unsigned flags) const {
    const DeviceGuard guard(ordinal_);
    cudaEvent_t event = nullptr;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate"));
    return std::unique_ptr<Event>(new CudaEvent(event));
  }
  std::string OutOfMemoryText(size_t bytes, MemoryKind kind) const {
    std::string text = "cannot allocate " + std::to_string(bytes) + " bytes of " +
                       (kind == MemoryKind::kHostPinned ? std::string("page-locked host memory") : "memory of " + name_);
    if (const Result<MemoryInfo> info = GetMemoryInfo(); kind != MemoryKind::kHostPinned && info.ok()) {
      text += ", of which " + std::to_string(info->free_bytes) + " of " + std::to_string(info->total_bytes) + " are free";
    }
    return text;
  }

  const int ordinal_;
  const std::string name_;
  const int compute_capability_;
  std::optional<ReleasableMemory> weights_, kv_;  // none: without virtual memory management
};

std::string VersionText(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

}  // namespace

Result<std::unique_ptr<Device>> Device::CreateCuda(int ordinal) {
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return Unavailable("no NVIDIA driver was found: install one, or use the CPU");
  if (driver / 1000 < runtime / 1000) {
    return Unavailable("the NVIDIA driver supports CUDA " + VersionText(driver) + ", this build needs " + VersionText(runtime) +
                       ": update the driver, or build with an older toolkit");
  }
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return Unavailable(std::string("no CUDA device can be used: ") + cudaGetErrorString(error));
  }
  if (ordinal < 0 || ordinal >= count) {
    return Unavailable("there is no CUDA device " + std::to_string(ordinal) + ": this machine has " + std::to_string(count));
  }
  cudaDeviceProp properties{};
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  const int capability = 10 * properties.major + properties.minor;
  if (capability < 80) {
    return Unavailable(std::string(properties.name) + " has compute capability " + std::to_string(properties.major) + "." +
                       std::to_string(properties.minor) + ", expected 8.0 or newer");
  }
  return std::unique_ptr<Device>(new CudaDevice(ordinal, properties.name, capability));
}

}  // namespace coppice
