// The shipped constants and the arithmetic of cost_model.h. Sources of the constants: vendors' data sheets for bandwidths and
// caches, and measured rates where stated. A measured file always beats them. Layer: attention.
#include "attention/cost_model.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "attention/backend.h"
#include "attention/plan_units.h"
#include "core/check.h"
#include "core/json.h"

namespace coppice::attention {
namespace {

// Rates of one core; memory bandwidth and the shared cache stop growing at the socket's.
struct CpuConstants {
  std::string_view name;
  double read_per_core, read_socket, cache_per_core, cache_bytes;
  double dense_per_core, stream_per_core, item_fixed_ns, state_per_core, merge_fixed_ns, stream_kv_per_core, dense_task_ns;
};

constexpr std::array<CpuConstants, 4> kCpus = {{
    // Zen 5, `coppice bench calibrate` on two cores of an EPYC virtual machine, halved.
    {"zen5", 25e9, 500e9, 65e9, 20e6, 430e9, 290e9, 420, 15e9, 30, 65e9, 600},
    // Zen 4: half of Zen 5's 512-bit width, 12 channels of DDR5-4800.
    {"zen4", 22e9, 400e9, 50e9, 20e6, 215e9, 145e9, 450, 14e9, 30, 33e9, 1200},
    // Sapphire Rapids, `coppice bench calibrate` on two cores of a virtual machine, halved; 8 channels of DDR5-4800 (307 GB/s).
    // Neighbours on the host take up to two thirds of memory and tile unit: these are of a calm moment, but for the dense rate,
    // which is the middle of what was seen (270 to 670 Gflop/s a core).
    {"sapphire-rapids", 21.8e9, 270e9, 26.4e9, 60e6, 450e9, 95e9, 1875, 7.3e9, 194, 0, 0},
    // AVX2 and fp32 FMA.
    {"generic-x86", 12e9, 100e9, 40e9, 16e6, 60e9, 25e9, 500, 25e9, 350, 0, 0},
}};

struct GpuConstants {
  std::string_view name;
  double read, cache, cache_bytes, dense, stream, item_fixed_ns, state, merge_fixed_ns;
  double launch_ns, dense_task_ns, dense_token_ns, stream_task_ns, stream_token_ns, fold_ns, fold_state_ns;
};

// Fitted to the 294 cells of `attention_cuda_bench --sweep on` (docs/kernels/hopper.md, "Never slower"). Row tiles of one range run
// side by side and meet in the L2 however long the range is: it counts as if the cache held all of it.
constexpr std::array<GpuConstants, 2> kGpus = {{
    // H200: 4.3 TB/s from HBM with stream tiles and 10 from the L2; dense tiles at 545 Tflop/s while others stream.
    {"h200", 4.3e12, 10.1e12, 1e12, 545e12, 400e12, 700, 5.8e12, 212, 10100, 3650, 10.5, 940, 27, 1560, 260},
    // H100 SXM: HBM 3.35 TB/s by data sheet against the H200's 4.8, so 3.0 usable. All else is the SMs' and the L2's, which are the
    // same at the same clock.
    {"h100", 3.0e12, 10.1e12, 1e12, 545e12, 400e12, 700, 5.8e12, 212, 10100, 3650, 10.5, 940, 27, 1560, 260},
}};

// The part of the cache's time for tokens read again that reads from memory do not hide: all warps begin with the shared part.
constexpr double kUnhiddenReread = 0.6;
// The part of a dense task's start that the task before it on its worker does not hide: its Q and first KV are loaded meanwhile.
constexpr double kUnhiddenStart = 0.4;
constexpr int64_t kShortestStreamPiece = 256;
// Steps of teams on an H200, fitted to 151 cells of the same sweep (10 % root mean square): the launch, and a step of all lanes, of
// up to half of a stream tile's rows and of more.
constexpr double kTeamLaunchNs = 10000, kTeamStepNs = 1600, kTeamWideStepNs = 4800;

// The numeric fields of a model, in the order of its JSON. A model may lack those after the first kNumRequired.
constexpr size_t kNumRequired = 8;
constexpr std::array<std::pair<const char*, double MachineModel::*>, kNumRequired + 8> kFields = {{
    {"read_bytes_per_s", &MachineModel::read_bytes_per_s},
    {"cache_bytes_per_s", &MachineModel::cache_bytes_per_s},
    {"cache_bytes", &MachineModel::cache_bytes},
    {"dense_flops_per_s", &MachineModel::dense_flops_per_s},
    {"stream_flops_per_s", &MachineModel::stream_flops_per_s},
    {"item_fixed_ns", &MachineModel::item_fixed_ns},
    {"state_bytes_per_s", &MachineModel::state_bytes_per_s},
    {"merge_fixed_ns", &MachineModel::merge_fixed_ns},
    {"stream_kv_bytes_per_s", &MachineModel::stream_kv_bytes_per_s},
    {"launch_ns", &MachineModel::launch_ns},
    {"dense_task_ns", &MachineModel::dense_task_ns},
    {"dense_token_ns", &MachineModel::dense_token_ns},
    {"stream_task_ns", &MachineModel::stream_task_ns},
    {"stream_token_ns", &MachineModel::stream_token_ns},
    {"fold_ns", &MachineModel::fold_ns},
    {"fold_state_ns", &MachineModel::fold_state_ns},
}};

}  // namespace

Result<MachineModel> ShippedMachineModel(std::string_view name, int32_t workers) {
  for (const CpuConstants& cpu : kCpus) {
    if (cpu.name != name) continue;
    const double n = std::max(workers, 1);
    return MachineModel{.name = std::string(cpu.name),
                        .read_bytes_per_s = std::min(n * cpu.read_per_core, cpu.read_socket),
                        .cache_bytes_per_s = n * cpu.cache_per_core,
                        .cache_bytes = cpu.cache_bytes,
                        .dense_flops_per_s = n * cpu.dense_per_core,
                        .stream_flops_per_s = n * cpu.stream_per_core,
                        .item_fixed_ns = cpu.item_fixed_ns,
                        .state_bytes_per_s = n * cpu.state_per_core,
                        .merge_fixed_ns = cpu.merge_fixed_ns,
                        .stream_kv_bytes_per_s = n * cpu.stream_kv_per_core,
                        .dense_task_ns = cpu.dense_task_ns};
  }
  for (const GpuConstants& gpu : kGpus) {
    if (gpu.name != name) continue;
    return MachineModel{.name = std::string(gpu.name),
                        .read_bytes_per_s = gpu.read,
                        .cache_bytes_per_s = gpu.cache,
                        .cache_bytes = gpu.cache_bytes,
                        .dense_flops_per_s = gpu.dense,
                        .stream_flops_per_s = gpu.stream,
                        .item_fixed_ns = gpu.item_fixed_ns,
                        .state_bytes_per_s = gpu.state,
                        .merge_fixed_ns = gpu.merge_fixed_ns,
                        .launch_ns = gpu.launch_ns,
                        .dense_task_ns = gpu.dense_task_ns,
                        .dense_token_ns = gpu.dense_token_ns,
                        .stream_task_ns = gpu.stream_task_ns,
                        .stream_token_ns = gpu.stream_token_ns,
                        .fold_ns = gpu.fold_ns,
                        .fold_state_ns = gpu.fold_state_ns};
  }
  std::string known;
  for (const CpuConstants& cpu : kCpus) known.append(" ").append(cpu.name);
  for (const GpuConstants& gpu : kGpus) known.append(" ").append(gpu.name);
  return NotFound("no shipped machine model '" + std::string(name) + "'; known:" + known);
}

std::string_view HostCpuModelName() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return "generic-x86";
  const unsigned base_family = (eax >> 8) & 0xf;
  const unsigned family = base_family == 0xf ? base_family + ((eax >> 20) & 0xff) : base_family;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return "generic-x86";
  constexpr unsigned kAvx512F = 1u << 16, kAmxBf16 = 1u << 22;
  if ((edx & kAmxBf16) != 0) return "sapphire-rapids";
  if ((ebx & kAvx512F) != 0 && family == 0x1a) return "zen5";
  if ((ebx & kAvx512F) != 0 && family == 0x19) return "zen4";
#endif
  return "generic-x86";
}

Result<MachineModel> ParseMachineModel(std::string_view json) {
  const Result<nlohmann::json> parsed = ParseJson(json);
  if (!parsed.ok() || !parsed->is_object()) {
    return InvalidArgument("machine model: not a JSON object" + (parsed.ok() ? "" : " (" + parsed.status().message() + ")") +
                           "; write one with `coppice bench calibrate`");
  }
  const nlohmann::json& object = *parsed;
  MachineModel model;
  for (const auto& [key, value] : object.items()) {
    const std::string& k = key;
    const bool known = k == "name" || std::any_of(kFields.begin(), kFields.end(), [&](const auto& f) { return k == f.first; });
    if (!known) return InvalidArgument("machine model: unknown field '" + key + "'");
  }
  if (const auto it = object.find("name"); it != object.end()) {
    if (!it->is_string()) return InvalidArgument("machine model: 'name' is not a string");
    model.name = it->get<std::string>();
  }
  for (size_t i = 0; i < kFields.size(); ++i) {
    const auto& [key, field] = kFields[i];
    const auto it = object.find(key);
    const bool optional = i >= kNumRequired;
    if (optional && it == object.end()) continue;
    if (it == object.end() || !it->is_number()) {
      return InvalidArgument("machine model: field '" + std::string(key) + "' is missing or not a number");
    }
    model.*field = it->get<double>();
    if (!std::isfinite(model.*field) || model.*field < 0 || (!optional && model.*field == 0)) {
      return InvalidArgument("machine model: '" + std::string(key) + "' is " + it->dump() + ", expected a positive number" +
                             (optional ? " or 0" : ""));
    }
  }
  return model;
}

std::string ToJson(const MachineModel& model) {
  nlohmann::ordered_json object;
  object["name"] = model.name;
  for (const auto& [key, field] : kFields) object[key] = model.*field;
  return object.dump(2);
}

Result<MachineModel> LoadMachineModel(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFound("machine model " + path + ": cannot be opened; write it with `coppice bench calibrate`");
  std::ostringstream text;
  text << file.rdbuf();
  Result<MachineModel> model = ParseMachineModel(text.str());
  if (!model.ok()) return Status(model.status().code(), path + ": " + model.status().message());
  return model;
}

Status SaveMachineModel(const MachineModel& model, const std::string& path) {
  std::ofstream file(path);
  file << ToJson(model) << '\n';
  file.close();
  if (!file) return Unavailable("machine model " + path + ": cannot be written");
  return OkStatus();
}

CostModel::CostModel(const AttentionSpec& spec, const BackendTraits& traits, const MachineModel& machine) {
  COPPICE_CHECK(machine.read_bytes_per_s > 0 && machine.cache_bytes_per_s > 0 && machine.dense_flops_per_s > 0 &&
                machine.stream_flops_per_s > 0 && machine.state_bytes_per_s > 0);
  const int64_t computed_dim = std::max(traits.native_head_dim, spec.head_dim);
  kv_bytes_ = int64_t{2} * spec.num_kv_heads * spec.head_dim * static_cast<int64_t>(SizeOf(spec.kv_dtype));
  flops_ = int64_t{4} * spec.num_kv_heads * spec.head_dim;
  state_bytes_ = int64_t{spec.num_kv_heads} * (spec.head_dim + 2) * 4;
  dense_min_rows_ = std::max(traits.dense_min_rows, 1);
  row_unit_ = traits.dense_row_unit > 0 ? traits.dense_row_unit : dense_min_rows_;
  tile_rows_ = std::max(traits.dense_tile_rows, 1);
  lanes_ = std::max(traits.stream_lanes, 1);
  team_lanes_ = traits.team_lanes;
  kv_tile_ = std::max(traits.kv_tile, 1);
  kv_heads_ = spec.num_kv_heads;
  latencies_ = machine.launch_ns > 0;
  machine_ = machine;
  max_item_rows_ = traits.max_item_rows;
  workers_ = std::max(traits.workers, 1);
  read_ns_ = 1e9 * static_cast<double>(kv_bytes_) / machine.read_bytes_per_s;
  cache_ns_ = 1e9 * static_cast<double>(kv_bytes_) / std::max(machine.cache_bytes_per_s, machine.read_bytes_per_s);
  cache_tokens_ = std::llround(machine.cache_bytes / static_cast<double>(kv_bytes_));
  const double row_flops = 4.0 * spec.num_kv_heads * static_cast<double>(computed_dim);
  dense_ns_ = 1e9 * row_flops / machine.dense_flops_per_s;
  stream_ns_ = 1e9 * row_flops / machine.stream_flops_per_s;
  if (machine.stream_kv_bytes_per_s > 0) stream_kv_ns_ = 1e9 * static_cast<double>(kv_bytes_) / machine.stream_kv_bytes_per_s;
  state_ns_ = 1e9 * 2.0 * static_cast<double>(state_bytes_) / machine.state_bytes_per_s;
  task_fixed_ns_ = machine.item_fixed_ns;
  item_ns_ = machine.item_fixed_ns * spec.num_kv_heads / workers_;
  dense_start_ns_ = machine.dense_task_ns * spec.num_kv_heads / workers_;
  merge_ns_ = machine.merge_fixed_ns * spec.num_kv_heads / workers_;
}

double CostModel::RereadNs(int64_t tokens) const {
  if (tokens <= 0) return cache_ns_;
  const double hit = std::min(1.0, static_cast<double>(cache_tokens_) / static_cast<double>(tokens));
  return hit * cache_ns_ + (1.0 - hit) * read_ns_;
}

double CostModel::ComputeNs(int64_t rows) const {
  if (KindOf(rows) == ItemKind::kStreamTile) return stream_kv_ns_ + static_cast<double>(rows) * stream_ns_;
  return static_cast<double>(ComputedRows(rows)) * dense_ns_;
}

double CostModel::StartNs(int64_t rows) const {
  if (!latencies_) return static_cast<double>(RowGroups(rows)) * item_ns_ + DenseStartNs(rows);
  if (KindOf(rows) == ItemKind::kStreamTile) return machine_.stream_task_ns * kv_heads_ / (workers_ * lanes_);
  return static_cast<double>(DenseTasks(rows)) * kUnhiddenStart * machine_.dense_task_ns * kv_heads_ / workers_;
}

int64_t CostModel::ComputedRows(int64_t rows) const {
  return KindOf(rows) == ItemKind::kStreamTile ? rows : RoundUp(rows, row_unit_);
}

int64_t CostModel::ComputedTokens(int64_t rows, int64_t tokens) const {
  if (!latencies_ || KindOf(rows) == ItemKind::kStreamTile) return tokens;
  return RoundUp(tokens, kv_tile_);
}

int64_t CostModel::ShortestStreamPiece(const StepShape& shape) const {
  return std::max(kShortestStreamPiece, shape.stream_tokens * kv_heads_ / (int64_t{2} * workers_ * lanes_));
}

// n pieces take tokens / n to read and n to fold: least together at the root of their ratio.
Pieces CostModel::Cut(int64_t rows, int64_t tokens, int64_t shortest_stream_piece) const {
  const bool dense = KindOf(rows) == ItemKind::kDenseTile;
  const int64_t shortest = dense ? kv_tile_ : shortest_stream_piece;
  const double token_ns = dense ? machine_.dense_token_ns : machine_.stream_token_ns * (IsWide(rows) ? 2 : 1);
  const double read_ns = static_cast<double>(ComputedTokens(rows, tokens)) * token_ns;
  const double fold_ns = FoldNs(rows, 2) - FoldNs(rows, 1);
  const int64_t most = std::clamp(tokens / shortest, int64_t{1}, kMostPieces);
  const int64_t count =
      fold_ns > 0 ? std::clamp(std::llround(std::sqrt(read_ns / fold_ns)), 1LL, static_cast<long long>(most)) : most;
  return {.count = static_cast<int32_t>(count), .ns = read_ns / static_cast<double>(count) + (dense ? machine_.dense_task_ns : 0)};
}

double CostModel::FoldNs(int64_t rows, int64_t states) const {
  const auto passes = static_cast<double>(CeilDiv(std::min(rows, kFoldWarpRows), kFoldRows));
  // The warps of a dense tile fold at the same time: they wait for the code once.
  const double begin = KindOf(rows) == ItemKind::kDenseTile ? machine_.fold_ns : passes * machine_.fold_ns;
  return begin + passes * static_cast<double>(states) * machine_.fold_state_ns;
}

double CostModel::StepNs(const StepShape& shape, const StepChains& chains) const {
  const double heads = kv_heads_;
  const auto reread = static_cast<double>(shape.reread_tokens());
  const double merge = static_cast<double>(shape.merges) * merge_ns_ + static_cast<double>(shape.state_rows) * state_ns_;
  if (!latencies_) {
    const auto misses = static_cast<double>(std::max<int64_t>(0, shape.item_misses - shape.read_misses));
    const double memory = static_cast<double>(shape.read_tokens) * read_ns_ + reread * cache_ns_ + misses * (read_ns_ - cache_ns_);
    const double compute = static_cast<double>(shape.dense_row_tokens) * dense_ns_ +
                           static_cast<double>(shape.stream_row_tokens) * stream_ns_ +
                           static_cast<double>(shape.stream_tokens) * stream_kv_ns_;
    return std::max(memory, compute) + static_cast<double>(shape.item_starts) * item_ns_ +
           static_cast<double>(shape.dense_tasks) * dense_start_ns_ + merge;
  }
  if (RunsAsTeams(shape)) return TeamStepNs(shape);
  const auto streamed = static_cast<double>(std::max<int64_t>(0, shape.read_tokens - shape.dense_item_tokens));
  const double memory = streamed * read_ns_ + kUnhiddenReread * reread * cache_ns_;
  // An SM computes its dense tasks, then streams.
  const double dense =
      static_cast<double>(shape.dense_tasks) * heads * kUnhiddenStart * machine_.dense_task_ns / workers_ +
      std::max(static_cast<double>(shape.dense_row_tokens) * dense_ns_, static_cast<double>(shape.dense_item_tokens) * read_ns_);
  // More stream tasks than lanes without a dense task: one begins when the first others end.
  const double busy = std::min(static_cast<double>(chains.dense_pieces) * heads, static_cast<double>(workers_));
  const double free_lanes = lanes_ * (busy < workers_ ? workers_ - busy : workers_);
  const bool waits = static_cast<double>(chains.stream_pieces) * heads > free_lanes;
  const double tail = waits ? chains.longest_stream_ns + machine_.stream_task_ns : 0;
  return machine_.launch_ns +
         std::max(dense + std::max({memory, StreamNs(shape), chains.longest_stream_ns}) + merge + chains.longest_fold_ns + tail,
                  chains.longest_dense_ns);
}

double CostModel::StreamNs(const StepShape& shape) const {
  return static_cast<double>(shape.stream_tasks) * kv_heads_ * machine_.stream_task_ns / (workers_ * lanes_) +
         static_cast<double>(shape.stream_tokens) * cache_ns_;
}

bool CostModel::RunsAsTeams(const StepShape& shape) const {
  return team_lanes_ > 0 && shape.dense_tasks == 0 && shape.stream_tasks * kv_heads_ <= workers_ &&
         shape.stream_tokens * kv_heads_ <= kMostTeamTokens * workers_;
}

double CostModel::TeamStepNs(const StepShape& shape) const {
  const double step_ns = shape.wide_stream_tasks > 0 ? kTeamWideStepNs : kTeamStepNs;
  const auto steps_ns = [&](int64_t tokens) {
    return step_ns * static_cast<double>(CeilDiv(tokens, int64_t{kStreamStepTokens} * team_lanes_));
  };
  const int64_t tasks = std::max<int64_t>(shape.stream_tasks, 1);
  const int64_t whole = shape.stream_tokens / tasks, pieces = workers_ / (tasks * kv_heads_);
  const int64_t piece = std::min(whole, std::max<int64_t>(kMinTeamPiece, CeilDiv(whole, pieces)));
  const bool cuts = shape.merges > 0 || steps_ns(whole) > steps_ns(piece) + kTeamMergeNs;
  const double memory = static_cast<double>(shape.read_tokens) * read_ns_ + static_cast<double>(shape.reread_tokens()) * cache_ns_;
  return kTeamLaunchNs + std::max(memory, steps_ns(cuts ? piece : whole)) + (cuts ? kTeamMergeNs : 0);
}

double CostModel::RereadPrice(const StepShape& shape) const {
  const double reread = static_cast<double>(shape.reread_tokens()) * cache_ns_;
  if (reread <= 0) return kUnhiddenReread;
  return std::clamp((StreamNs(shape) - static_cast<double>(shape.read_tokens) * read_ns_) / reread, kUnhiddenReread, 1.0);
}

}  // namespace coppice::attention
