// The dense operations of a model's step on a CUDA device, each figure beside its roofline:
//   ops_cuda_bench [--model llama3-8b|llama2-7b|tinyllama] [--rows 1,8,...] [--products on|off] [--tune on|off]
//                  [--bandwidth TB/s] [--flops TFLOP/s]
// Products: all layers' and the head's, own weights each, random, bf16, in one graph with nothing else but the gated activation:
// with the kernels that Ops chooses without Tune and with, and the library alone with what its heuristic names, in turns; then each
// kind of product, gated ones through our tiles too. The bound is max(bytes of the weights / bandwidth, FLOPs / rate), the two
// measured on an H200 (docs/matrix_products.md). Passes over rows: their bytes read and written, and the time of those. Medians of
// the replays. Layer: ops/cuda.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/interleaved_timing.h"
#include "core/math.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/gated_product.h"
#include "ops/cuda/library_product.h"
#include "ops/cuda/rows.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {
namespace {

struct Model {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
};
constexpr Model kModels[] = {{"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256},
                             {"llama2-7b", 32, 4096, 32, 32, 128, 11008, 32000},
                             {"tinyllama", 22, 2048, 32, 4, 64, 5632, 32000}};

struct Settings {
  Model model = kModels[0];
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 64, 128, 256, 512, 1024};
  double bandwidth = 4.7e12, flops = 783e12;
  bool runs_products = true, tunes = true;
};

template <class T>
T Require(Result<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  std::exit(1);
}
void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

struct Layer {
  std::unique_ptr<Weight> qkv, out, gate_up, down;
};

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings), device_(Require(Device::CreateCuda(0))) {
    stream_ = Require(device_->CreateStream());
    cache_folder_ = std::filesystem::temp_directory_path() / ("ops_cuda_bench." + std::to_string(std::random_device()()));
    ops_ = Require(Ops::Create(device_.get(), {.cache_folder = cache_folder_}));
    untuned_ = Require(Ops::Create(device_.get(), {.cache_folder = cache_folder_ / "none"}));
    library_ = Require(LibraryProduct::Create(device_.get(), false, &no_algorithms_));
    gated_ = Require(GatedProduct::Create(device_.get()));
    const Model& m = settings.model;
    std::mt19937 random(1);
    const int64_t largest = std::max({m.intermediate * m.hidden, m.vocab * m.hidden, m.heads * m.head_dim * m.hidden});
    random_.resize(largest);
    for (BF16& value : random_) value = BF16::FromFloat(static_cast<float>(static_cast<int32_t>(random())) * 0x1p-37f);
    const int64_t kv = m.kv_heads * m.head_dim, q = m.heads * m.head_dim;
    for (int64_t i = 0; settings.runs_products && i < m.layers; ++i) {
      Layer layer;
      layer.qkv = Pack(m.hidden, {q, kv, kv});
      layer.out = Pack(q, {m.hidden});
      layer.gate_up = Pack(m.hidden, {m.intermediate, m.intermediate}, PartOrder::kGateUp);
      layer.down = Pack(m.intermediate, {m.hidden});
      layers_.push_back(std::move(layer));
    }
    head_ = Pack(m.hidden, {m.vocab});
    untuned_gate_up_ = Pack(*untuned_, m.hidden, {m.intermediate, m.intermediate}, PartOrder::kGateUp);
    const int64_t rows = RoundUp(std::ranges::max(settings.rows), kRowPadding);
    x_ = Upload(rows * std::max(m.intermediate, q));
    y_ = Require(device_->Allocate(rows * std::max({m.vocab, 2 * m.intermediate, q + 2 * kv}) * sizeof(float)));
    residual_ = Require(device_->Allocate(rows * m.hidden * sizeof(float)));
  }

  ~Bench() { std::filesystem::remove_all(cache_folder_); }

  void Run() {
    std::printf("%s, %s\n", device_->name().c_str(), ops_->description().c_str());
    if (settings_.runs_products) {
      RunProducts();
      RunSingles();
    }
    RunPasses();
  }

 private:
  // All of a step's products.
  void RunProducts() {
    std::printf("products of %s: %.3f GB of weights; ms (times the bound)\n", settings_.model.name, 2e-9 * Elements());
    std::printf("%6s %8s %18s %18s %18s\n", "rows", "bound", "without Tune", "with", "library, heuristic");
    timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (settings_.tunes) {
      Require(ops_->Tune(
          std::ranges::max(settings_.rows), [&](int64_t rows) { return Step(*ops_, rows); }, stream_->get()));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    for (const int64_t rows : settings_.rows) {
      const double bound = 1e3 * std::max(2 * Elements() / settings_.bandwidth, 2 * Elements() * rows / settings_.flops);
      std::printf("%6ld %8.3f", rows, bound);
      for (const double ms :
           Times({[&] { return Step(*untuned_, rows); }, [&] { return Step(*ops_, rows); }, [&] { return LibraryStep(rows); }})) {
        std::printf("   %8.3f (%4.2f)", ms, ms / bound);
      }
      std::printf("\n");
    }
    std::printf("Tune took %.1f s\n",
                static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec));
    std::printf("head alone:");
    for (const int64_t rows : settings_.rows) {
      const double us = 1e3 * Time([&] { return One(*ops_, rows, *head_, Epilogue::Kind::kStore); });
      std::printf(" %ld rows %.1f us", rows, us);
    }
    std::printf("\n");
  }
  double Elements() const {
    const Model& m = settings_.model;
    const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    return static_cast<double>(m.layers * m.hidden * (2 * q + 2 * kv + 3 * m.intermediate) + m.vocab * m.hidden);
  }
  std::unique_ptr<Weight> Pack(int64_t in, std::vector<int64_t> rows, PartOrder order = PartOrder::kConcatenated) {
    return Pack(*ops_, in, rows, order);
  }
  std::unique_ptr<Weight> Pack(Ops& ops, int64_t in, std::vector<int64_t> rows, PartOrder order) {
    std::vector<LinearPart> parts;
    for (const int64_t r : rows) parts.push_back({.weight = random_.data(), .rows = r});
    return Require(ops.Pack(DType::kBF16, in, parts, order));
  }
  DeviceMemory Upload(int64_t count) {
    DeviceMemory memory = Require(device_->Allocate(count * sizeof(BF16)));
    for (int64_t done = 0; done < count; done += static_cast<int64_t>(random_.size())) {
      const int64_t piece = std::min(count - done, static_cast<int64_t>(random_.size()));
      Require(device_->Copy(memory.As<BF16>() + done, random_.data(), piece * sizeof(BF16), nullptr));
    }
    Require(device_->Synchronize(Stream{nullptr}));
    return memory;
  }

  template <class T>
  DeviceMemory ToDevice(const std::vector<T>& values) {
    DeviceMemory memory = Require(device_->Allocate(values.size() * sizeof(T)));
    Require(device_->Copy(memory.data(), values.data(), values.size() * sizeof(T), nullptr));
    Require(device_->Synchronize(Stream{nullptr}));
    return memory;
  }

  struct Operands {
    ConstDeviceTensor x;
    DeviceTensor y;
  };
  Operands OperandsOf(int64_t rows, const Weight& weight, Epilogue::Kind kind) const {
    const int64_t k = weight.in_features(), n = weight.out_features();
    const bool adds = kind == Epilogue::Kind::kAdd;
    const DType out = kind == Epilogue::Kind::kGated ? DType::kBF16 : DType::kF32;
    return {.x = {x_.data(), DType::kBF16, rows, k, k}, .y = {adds ? residual_.data() : y_.data(), out, rows, n, n}};
  }
  Status One(Ops& ops, int64_t rows, const Weight& weight, Epilogue::Kind kind) {
    const Operands operands = OperandsOf(rows, weight, kind);
    return ops.Linear(operands.x, weight, operands.y, {.kind = kind}, stream_->get());
  }
  Status OneOfOurGated(int64_t rows, const Weight& weight) {
    const Operands operands = OperandsOf(rows, weight, Epilogue::Kind::kGated);
    return gated_.Run(operands.x, WeightView::Of(static_cast<const CudaWeight&>(weight)), operands.y, Activation::kSilu,
                      static_cast<cudaStream_t>(stream_->get()));
  }
  Status Step(Ops& ops, int64_t rows) {
    for (const Layer& layer : layers_) {
      COPPICE_RETURN_IF_ERROR(One(ops, rows, *layer.qkv, Epilogue::Kind::kStore));
      COPPICE_RETURN_IF_ERROR(One(ops, rows, *layer.out, Epilogue::Kind::kAdd));
      COPPICE_RETURN_IF_ERROR(One(ops, rows, *layer.gate_up, Epilogue::Kind::kGated));
      COPPICE_RETURN_IF_ERROR(One(ops, rows, *layer.down, Epilogue::Kind::kAdd));
    }
    return One(ops, rows, *head_, Epilogue::Kind::kStore);
  }
  Status OneOfLibrary(int64_t rows, const Weight& weight) {
    const auto& packed = static_cast<const CudaWeight&>(weight);
    const int64_t k = packed.in_features(), n = packed.rows();
    const ProductShape shape = {.dtype = DType::kBF16,
                                .out_dtype = DType::kBF16,
                                .rows = rows,
                                .n = n,
                                .k = k,
                                .x_stride = k,
                                .w_stride = packed.stride(),
                                .y_stride = n};
    return library_->Run(shape, {.x = x_.data(), .w = packed.data(), .y = y_.data()}, static_cast<cudaStream_t>(stream_->get()));
  }
  Status LibraryStep(int64_t rows) {
    for (const Layer& layer : layers_) {
      for (const Weight* weight : {layer.qkv.get(), layer.out.get(), layer.gate_up.get(), layer.down.get()}) {
        COPPICE_RETURN_IF_ERROR(OneOfLibrary(rows, *weight));
      }
    }
    return OneOfLibrary(rows, *head_);
  }

  // Milliseconds of what each of `runs` launches, from graphs that are replayed in turns: medians of seven replays.
  std::vector<double> Times(const std::vector<std::function<Status()>>& runs) {
    std::vector<std::unique_ptr<Graph>> graphs;
    for (const auto& run : runs) {
      Require(run());
      Require(device_->Synchronize(stream_->get()));
      graphs.push_back(Require(CaptureGraph(*device_, stream_->get(), run)));
      Require(device_->Launch(*graphs.back(), stream_->get()));
    }
    const std::unique_ptr<Event> begin = Require(device_->CreateTimedEvent()), end = Require(device_->CreateTimedEvent());
    const auto replay = [&](size_t run) -> Result<double> {
      COPPICE_RETURN_IF_ERROR(device_->Record(*begin, stream_->get()));
      COPPICE_RETURN_IF_ERROR(device_->Launch(*graphs[run], stream_->get()));
      COPPICE_RETURN_IF_ERROR(device_->Record(*end, stream_->get()));
      COPPICE_RETURN_IF_ERROR(device_->Synchronize(stream_->get()));
      return device_->SecondsBetween(*begin, *end);
    };
    std::vector<double> medians;
    for (const InterleavedTimes& timed : Require(TimeInTurns(runs.size(), {.repeats = 7}, replay))) {
      medians.push_back(1e3 * timed.Median());
    }
    return medians;
  }
  double Time(const std::function<Status()>& run) { return Times({run}).front(); }

  // One kind of product over all layers.
  void RunSingles() {
    struct Kind {
      const char* name;
      std::unique_ptr<Weight> Layer::*weight;
      Epilogue::Kind epilogue;
    };
    const Kind kinds[] = {{"qkv", &Layer::qkv, Epilogue::Kind::kStore},
                          {"out", &Layer::out, Epilogue::Kind::kAdd},
                          {"gate_up", &Layer::gate_up, Epilogue::Kind::kGated},
                          {"down", &Layer::down, Epilogue::Kind::kAdd}};
    std::printf("\none product, us of each (TFLOP/s; times the bound)\n%6s %8s %9s %22s %22s %22s\n", "rows", "", "bound", "Ops",
                "our tiles", "library, bf16 stored");
    for (const int64_t rows : settings_.rows) {
      for (const Kind& kind : kinds) {
        const auto each = [&](const auto& one) {
          const double ms = Time([&] {
            Status status;
            for (const Layer& layer : layers_) {
              if (status.ok()) status = one(*(layer.*kind.weight));
            }
            return status;
          });
          return 1e3 * ms / static_cast<double>(layers_.size());
        };
        const auto& w = static_cast<const CudaWeight&>(*(layers_.front().*kind.weight));
        const double elements = static_cast<double>(w.rows()) * static_cast<double>(w.in_features()),
                     flops = 2 * elements * static_cast<double>(rows);
        const double bound = 1e6 * std::max(2 * elements / settings_.bandwidth, flops / settings_.flops);
        const auto print = [&](double us) { std::printf("   %8.1f (%3.0f; %4.2f)", us, 1e-6 * flops / us, us / bound); };
        std::printf("%6ld %8s %9.1f", rows, kind.name, bound);
        print(each([&](const Weight& weight) { return One(*ops_, rows, weight, kind.epilogue); }));
        if (gated_.IsAvailable() && kind.epilogue == Epilogue::Kind::kGated) {
          print(each([&](const Weight& weight) { return OneOfOurGated(rows, weight); }));
        } else {
          std::printf("%23s", "-");
        }
        print(each([&](const Weight& weight) { return OneOfLibrary(rows, weight); }));
        std::printf("\n");
      }
    }
  }

  // The passes over rows, 32 of each in a graph: over one input again and again, and each behind a pass that writes its input row
  // by row, as the product before it does in a step. The time of the writer alone is taken off.
  void RunPasses() {
    std::printf("\npasses over rows, us of each (TB/s; times the bound: bytes / bandwidth); a GPU's L2 holds small ones\n");
    std::printf("%6s %12s %8s %9s %22s %22s\n", "rows", "", "MB", "bound", "alone", "behind a writer");
    for (const int64_t rows : settings_.rows) RunPasses(rows);
  }

  void RunPasses(int64_t rows) {
    const Model& m = settings_.model;
    const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, width = q + 2 * kv, half = m.head_dim / 2;
    const auto page_size = attention::KvPoolShape{}.page_size;
    const attention::KvPoolShape pages = {.num_pages = static_cast<int32_t>(CeilDiv<int64_t>(rows, page_size)),
                                          .num_kv_heads = static_cast<int32_t>(m.kv_heads),
                                          .head_dim = static_cast<int32_t>(m.head_dim)};
    const DeviceMemory pool = Require(device_->Allocate(pages.bytes())),
                       weights = ToDevice(std::vector<float>(std::max(m.hidden, width))),
                       cos_memory = Require(device_->Allocate(rows * half * sizeof(float))),
                       sin_memory = Require(device_->Allocate(rows * half * sizeof(float)));
    std::vector<int64_t> host_slots(rows);
    std::vector<int32_t> host_positions(rows), host_ids(rows);
    for (int64_t i = 0; i < rows; ++i) {
      host_slots[i] = i;
      host_positions[i] = static_cast<int32_t>(i);
      host_ids[i] = static_cast<int32_t>(i * 7919 % m.vocab);
    }
    const DeviceMemory slots = ToDevice(host_slots), positions = ToDevice(host_positions), ids = ToDevice(host_ids),
                       frequencies = ToDevice(std::vector<float>(half, 0.5f));
    const auto writer_table = Pack(width, {1}), narrow_writer_table = Pack(m.hidden, {1});
    const DeviceMemory zeros = ToDevice(std::vector<int32_t>(rows));

    const Stream stream = stream_->get();
    const bool overlaps = device_->compute_capability() >= 90;
    const DeviceTensor residual = {residual_.data(), DType::kF32, rows, m.hidden, m.hidden};
    const DeviceTensor normed = {x_.data(), DType::kBF16, rows, m.hidden, m.hidden};
    const DeviceTensor gated = {x_.data(), DType::kBF16, rows, m.intermediate, m.intermediate};
    const DeviceTensor qkv = {y_.data(), DType::kF32, rows, width, width};
    const DeviceTensor cos = {cos_memory.data(), DType::kF32, rows, half, half},
                       sin = {sin_memory.data(), DType::kF32, rows, half, half};
    const ConstDeviceTensor gate_up = {y_.data(), DType::kBF16, rows, 2 * m.intermediate, 2 * m.intermediate};
    const RopeAppendArgs rope = {.qkv = qkv,
                                 .cos = cos,
                                 .sin = sin,
                                 .num_qo_heads = static_cast<int32_t>(m.heads),
                                 .num_kv_heads = static_cast<int32_t>(m.kv_heads),
                                 .head_dim = static_cast<int32_t>(m.head_dim),
                                 .q = {x_.data(), DType::kBF16, rows, q, q},
                                 .kv = pages.View(pool.data()),
                                 .slot_mapping = {slots.As<int64_t>(), rows}};
    const auto write = [&](const DeviceTensor& y) {
      return ops_->Embed({zeros.As<int32_t>(), rows}, y.cols == width ? *writer_table : *narrow_writer_table, {}, y, stream);
    };

    struct Pass {
      const char* name;
      int64_t bytes;  // of a row, read and written
      std::function<Status()> run;
      const DeviceTensor* input = nullptr;  // that a writer can write
    };
    const Pass passes[] = {
        {"angles", 8 * half,
         [&] {
           return ops_->RopeAngles({positions.As<int32_t>(), rows}, {frequencies.As<float>(), half}, 1, cos, sin, stream);
         }},
        {"embed", 6 * m.hidden,
         [&] {
           return ops_->Embed({ids.As<int32_t>(), rows}, *head_, {}, residual, stream);
         }},
        {"norm", 6 * m.hidden,
         [&] {
           return ops_->Norm(residual, {.weight = {weights.As<float>(), m.hidden}}, normed, {}, stream);
         },
         &residual},
        {"rope_append", 6 * width + 8 * half, [&] { return ops_->RopeAppend(rope, stream); }, &qkv},
        {"gate", 6 * m.intermediate,
         [&] {
           return LaunchGate(gate_up, /*bias=*/nullptr, Activation::kSilu, gated, overlaps, static_cast<cudaStream_t>(stream));
         }},
        {"bias", 8 * width,
         [&] { return LaunchFinish({.bias = weights.As<float>()}, qkv, overlaps, static_cast<cudaStream_t>(stream)); }}};
    const auto each = [&](const std::function<Status()>& one) {
      return 1e3 / 32 * Time([&] {
               Status status;
               for (int i = 0; i < 32 && status.ok(); ++i) status = one();
               return status;
             });
    };
    for (const Pass& pass : passes) {
      const double bytes = static_cast<double>(rows * pass.bytes), bound = 1e6 * bytes / settings_.bandwidth;
      const auto print = [&](double us) { std::printf("   %8.2f (%4.2f; %4.2f)", us, 1e-6 * bytes / us, us / bound); };
      std::printf("%6ld %12s %8.1f %9.2f", rows, pass.name, 1e-6 * bytes, bound);
      print(each(pass.run));
      if (pass.input != nullptr) {
        const double writer = each([&] { return write(*pass.input); });
        print(each([&] {
                COPPICE_RETURN_IF_ERROR(write(*pass.input));
                return pass.run();
              }) -
              writer);
      }
      std::printf("\n");
    }
  }

  Settings settings_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<OwnedStream> stream_;
  AlgorithmFile no_algorithms_{"", ""};
  std::filesystem::path cache_folder_;  // what Tune measures here
  std::unique_ptr<Ops> ops_, untuned_;
  std::unique_ptr<LibraryProduct> library_;
  GatedProduct gated_;
  std::vector<BF16> random_;
  std::vector<Layer> layers_;
  std::unique_ptr<Weight> head_, untuned_gate_up_;  // the latter for the memory that Pack makes room for
  DeviceMemory x_, y_, residual_;
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model") {
      const auto found = std::ranges::find_if(kModels, [&](const Model& model) { return value == model.name; });
      if (found == std::end(kModels)) Require(InvalidArgument("--model " + value + ", expected llama3-8b, llama2-7b or tinyllama"));
      settings.model = *found;
    } else if (name == "--rows") {
      settings.rows.clear();
      std::istringstream list(value);
      for (std::string item; std::getline(list, item, ',');) settings.rows.push_back(std::max(1L, std::atol(item.c_str())));
    } else if (name == "--bandwidth") {
      settings.bandwidth = 1e12 * std::atof(value.c_str());
    } else if (name == "--flops") {
      settings.flops = 1e12 * std::atof(value.c_str());
    } else if (name == "--products") {
      settings.runs_products = value != "off";
    } else if (name == "--tune") {
      settings.tunes = value != "off";
    } else {
      Require(InvalidArgument("unknown option " + name + ", expected --model, --rows, --products, --tune, --bandwidth or --flops"));
    }
  }
  return settings;
}

}  // namespace
}  // namespace coppice::ops::cuda

int main(int argc, char** argv) {
  using namespace coppice::ops::cuda;
  Bench(Parse(argc, argv)).Run();
  return 0;
}
