#include <chrono>
#include <cstring>
#include <utility>

#include "attention/cpu/cpu_backend.h"
#include "attention_tools/bench_device.h"
#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

class HostMemory final : public BenchMemory {
 public:
  explicit HostMemory(Buffer buffer) : buffer_(std::move(buffer)) {}
  void* data() override { return buffer_.data(); }
  Status CopyFrom(std::span<const std::byte> host) override {
    std::memcpy(buffer_.data(), host.data(), host.size());
    return OkStatus();
  }
  Status CopyTo(std::span<std::byte> host) override {
    std::memcpy(host.data(), buffer_.data(), host.size());
    return OkStatus();
  }

 private:
  Buffer buffer_;
};

class CpuBenchDevice final : public BenchDevice {
 public:
  CpuBenchDevice(std::unique_ptr<Backend> backend, cpu::Isa isa, const cpu::CpuRoofline& roofline)
      : backend_(std::move(backend)), isa_(isa), roofline_(roofline) {}

  Backend& backend() override { return *backend_; }
  std::string name() const override { return std::string(cpu::Name(isa_)); }
  double product_flops_per_s() const override { return roofline_.product_flops_per_s; }
  double read_bytes_per_s() const override { return roofline_.read_bytes_per_s; }
  bool flushes_caches() const override { return false; }
  Result<std::unique_ptr<BenchMemory>> Allocate(size_t bytes) override {
    COPPICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(bytes));
    return std::unique_ptr<BenchMemory>(new HostMemory(std::move(buffer)));
  }
  Result<double> Time(const std::function<Status(Stream)>& run) override {
    const auto begin = std::chrono::steady_clock::now();
    COPPICE_RETURN_IF_ERROR(run(nullptr));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  std::unique_ptr<Backend> backend_;
  cpu::Isa isa_;
  cpu::CpuRoofline roofline_;
};

}  // namespace

Result<std::unique_ptr<BenchDevice>> MakeCpuBenchDevice(Executor& executor, cpu::Isa isa) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeCpuBackend(&executor, isa));
  COPPICE_ASSIGN_OR_RETURN(const cpu::CpuRoofline roofline, cpu::MeasureCpuRoofline(executor, isa, DType::kBF16));
  return std::unique_ptr<BenchDevice>(new CpuBenchDevice(std::move(backend), isa, roofline));
}

}  // namespace coppice::attention
