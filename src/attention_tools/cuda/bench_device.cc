#include <cuda_runtime_api.h>

#include <utility>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/device_rates.h"
#include "attention_tools/bench_device.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

using namespace cuda;

constexpr size_t kFlushBytes = size_t{256} << 20;  // several times the largest L2

class DeviceBenchMemory final : public BenchMemory {
 public:
  DeviceBenchMemory(int device, DeviceBuffer buffer) : device_(device), buffer_(std::move(buffer)) {}
  void* data() override { return buffer_.data(); }
  Status CopyFrom(std::span<const std::byte> host) override {
    const DeviceGuard guard(device_);
    return CudaStatus(cudaMemcpy(buffer_.data(), host.data(), host.size(), cudaMemcpyHostToDevice), "copying to the device");
  }
  Status CopyTo(std::span<std::byte> host) override {
    const DeviceGuard guard(device_);
    return CudaStatus(cudaMemcpy(host.data(), buffer_.data(), host.size(), cudaMemcpyDeviceToHost), "copying from the device");
  }

 private:
  int device_;
  DeviceBuffer buffer_;
};

class CudaBenchDevice final : public BenchDevice {
 public:
  static Result<std::unique_ptr<BenchDevice>> Create(int device) {
    std::unique_ptr<CudaBenchDevice> self(new CudaBenchDevice(device));
    COPPICE_ASSIGN_OR_RETURN(self->backend_, MakeCudaBackend(device));
    const DeviceGuard guard(device);
    cudaDeviceProp properties;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
    self->name_ = properties.name;
    COPPICE_ASSIGN_OR_RETURN(const DeviceRates rates, RatesOf(device));
    self->product_flops_per_s_ = properties.multiProcessorCount * rates.clock_hz * rates.flops_per_clock;
    self->read_bytes_per_s_ = rates.bus_bytes_per_s > 0 ? rates.bus_bytes_per_s : self->backend_->machine().read_bytes_per_s;
    for (cudaStream_t* stream : {&self->stream_, &self->other_stream_}) {
      COPPICE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreate(stream), "cudaStreamCreate"));
    }
    for (cudaEvent_t* event : {&self->begin_, &self->end_, &self->fork_, &self->join_}) {
      COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(event), "cudaEventCreate"));
    }
    COPPICE_ASSIGN_OR_RETURN(self->flush_, DeviceBuffer::Allocate(kFlushBytes));
    return std::unique_ptr<BenchDevice>(std::move(self));
  }
  ~CudaBenchDevice() override {
    const DeviceGuard guard(device_);
    for (const cudaEvent_t event : {begin_, end_, fork_, join_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    for (const cudaStream_t stream : {stream_, other_stream_}) {
      if (stream != nullptr) cudaStreamDestroy(stream);
    }
  }

  Backend& backend() override { return *backend_; }
  std::string name() const override { return name_; }
  double product_flops_per_s() const override { return product_flops_per_s_; }
  double read_bytes_per_s() const override { return read_bytes_per_s_; }
  bool flushes_caches() const override { return true; }
  Result<std::unique_ptr<BenchMemory>> Allocate(size_t bytes) override {
    const DeviceGuard guard(device_);
    COPPICE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(bytes));
    return std::unique_ptr<BenchMemory>(new DeviceBenchMemory(device_, std::move(buffer)));
  }
  Result<double> Time(const std::function<Status(Stream)>& run) override {
    const DeviceGuard guard(device_);
    COPPICE_RETURN_IF_ERROR(run(stream_));  // kernels are loaded outside the capture
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a graph"));
    Status status = run(stream_);
    const Status captured = CudaStatus(cudaStreamEndCapture(stream_, &graph), "capturing a graph");
    if (status.ok()) status = captured;
    if (status.ok()) status = CudaStatus(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
    Result<double> seconds = status.ok() ? TimeReplay(replay) : Result<double>(status);
    if (replay != nullptr) cudaGraphExecDestroy(replay);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return seconds;
  }
  Result<double> TimeOnTwoStreams(const std::function<Status(Stream)>& first,
                                  const std::function<Status(Stream)>& second) override {
    return Time([&](Stream) -> Status {
      COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(fork_, stream_), "cudaEventRecord"));
      COPPICE_RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(other_stream_, fork_, 0), "cudaStreamWaitEvent"));
      COPPICE_RETURN_IF_ERROR(first(stream_));
      COPPICE_RETURN_IF_ERROR(second(other_stream_));
      COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(join_, other_stream_), "cudaEventRecord"));
      return CudaStatus(cudaStreamWaitEvent(stream_, join_, 0), "cudaStreamWaitEvent");
    });
  }

 private:
  explicit CudaBenchDevice(int device) : device_(device) {}

  Result<double> TimeReplay(cudaGraphExec_t replay) {
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(flush_.data(), 0, kFlushBytes, stream_), "flushing the L2"));
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(replay, stream_), "a timed run"));
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end_, stream_), "cudaEventRecord"));
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end_), "a timed run"));
    float ms = 0;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
    return double{ms} * 1e-3;
  }

  int device_;
  std::unique_ptr<Backend> backend_;
  std::string name_;
  cudaStream_t stream_ = nullptr, other_stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr, fork_ = nullptr, join_ = nullptr;
  DeviceBuffer flush_;
  double product_flops_per_s_ = 0, read_bytes_per_s_ = 0;
};

}  // namespace

Result<std::unique_ptr<BenchDevice>> MakeCudaBenchDevice(int device) { return CudaBenchDevice::Create(device); }

}  // namespace coppice::attention
