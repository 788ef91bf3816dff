// A machine: rates and times, as JSON, either shipped (machines/*.json, embedded at build) or measured by
// `coppice bench calibrate`. The only place where a number belongs to a chip: what follows from tiles stands in the kernels'
// Config. Layer: attention, private.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::attention {

// Rates of a GPU's SM, fitted to whole launches (docs/kernels/hopper.md, "SM partition"): what plans are cut for SMs and warps
// by. Rates are those of the whole card, times those of one SM or warp.
struct SmRates {
  int32_t num_sms = 0;                       // of the card that has these rates; 0: none are known
  double clock_hz = 0, bus_bytes_per_s = 0;  // by the card's data sheet: how rates scale to another card
  double dense_flops_per_s = 0;              // dense tiles alone
  double memory_bytes_per_s = 0;             // most that dense tiles and streams read together
  double bulk_bytes_per_s = 0;               // bulk copies of one SM
  double launch_ns = 0;                      // a launch beyond its work: its beginning, the first KV, the end of the last tasks
  double dense_task_ns = 0;                  // starting a dense task, and storing and folding its states
  double slowed_by_streams = 0;              // dense tokens take so much longer if all other SMs stream
  // A stream task occupies its warp for each step of 32 tokens and for its latencies, which are shorter once the dense tasks are
  // done, since it is the last of its sets then and folds from shared memory.
  double stream_step_ns = 0, stream_task_ns = 0, stream_task_with_dense_ns = 0;
  double stream_price_ns = 0;  // of a stream task where dense tiles could do the same
  double stream_token_ns = 0;  // one token of a stream task whose warp has the SM's copy path for itself
  double fold_pass_ns = 0;     // folding four rows of one more state
  // Steps of cooperative stream tasks, each read by all stream warps of an SM: the launch, a step of all of them for up to
  // half of a stream tile's rows and for more, a task of more, a step of a short task, and what comes with a second piece: states,
  // a ticket, a fold.
  double cooperative_launch_ns = 0, cooperative_step_ns = 0, cooperative_two_column_step_ns = 0, cooperative_two_column_task_ns = 0,
         cooperative_short_step_ns = 0, cooperative_merge_ns = 0;
  // The first reads from memory of stream tasks, for so long at the memory's rate, take this part longer, until all SMs keep enough
  // under way; and those of cooperative tasks, which have fewer under way.
  double slow_ns = 0, slow_reads = 0, cooperative_slow_ns = 0, cooperative_slow_reads = 0;
  double cooperative_unhidden_reread = 0;  // as unhidden_reread, of cooperative tasks
  // Overlapped tiles, which stream while the same SM computes dense tiles: a step of 64 tokens, a task; how much more a dense task
  // costs in the kernel that has them, and how much longer dense tokens take meanwhile.
  double overlapped_step_ns = 0, overlapped_task_ns = 0, dense_task_overlapped_ns = 0, slowed_by_overlap = 0;
  bool all_dense = false;  // no rate, and in no file: benches have all items computed by dense tiles
};

// Nine rates that a few seconds on a GPU measure (attention_tools/calibrate_gpu.h), each by whole steps: what they were on the card
// that a model was fitted to says how the model scales to the card at hand.
struct GpuProbe {
  double memory_bytes_per_s = 0;   // KV of long requests that share nothing
  double cache_bytes_per_s = 0;    // the same tokens read by all requests from one copy
  double dense_flops_per_s = 0;    // a prefix under full dense tiles
  double launch_ns = 0;            // a step of one short request
  double dense_task_ns = 0;        // one more dense task of one step for an SM, with the requests below it
  double stream_task_ns = 0;       // one more stream task of one step for a warp
  double stream_token_ns = 0;      // 512 tokens of a lone warp of each SM
  double cooperative_step_ns = 0;  // a step of one cooperative task on each of eight SMs
  double fold_ns = 0;              // one more level of nodes, a third state for each of 1,024 requests
};

// Times of a GPU's kernel of short decode steps (cuda/lower/short_steps.h).
struct ShortDecodeRates {
  double launch_ns = 0, wide_launch_ns = 0;  // a launch beyond its work, by clusters of 8 CTAs and of 16
  // A CTA's time a token: for each element of a query's rows under one kv head, and for each byte of its K and V.
  double element_ns = 0, byte_ns = 0;

  bool known() const { return launch_ns > 0; }
};

// Rates of one machine, all workers together. Times are those of one worker.
struct MachineModel {
  std::string name = "generic";
  std::string scaled_from;        // the model that these rates were scaled from, where none were measured on the device; in no file
  std::string kernels;            // a CPU's: the instruction set of the tiles whose rates these are, as COPPICE_CPU_ISA names it
  double read_bytes_per_s = 0;    // KV from memory
  double cache_bytes_per_s = 0;   // KV that another item of the same step has just read (L3 / L2)
  double cache_bytes = 0;         // how much of it that cache holds; infinite (null in JSON): what is read again is always there
  double dense_flops_per_s = 0;   // dense tiles, full rows
  double stream_flops_per_s = 0;  // stream tiles
  double item_fixed_ns = 0;       // start of a task (an item x a block of kv heads)
  double state_bytes_per_s = 0;   // partial states, written and read
  double merge_fixed_ns = 0;      // per merge set with more than one contribution, and kv head
  // KV that stream tiles take from the cache, besides what each row computes; 0: no bound.
  double stream_kv_bytes_per_s = 0;

  // How long things take however idle the machine is: on a GPU a decode step often lasts no longer. 0 on a CPU, where a step is
  // long beside a task's start: then steps are sums. But for dense_task_ns: there it adds to a worker's sum, besides item_fixed_ns.
  double launch_ns = 0;        // a step that does nothing
  double dense_task_ns = 0;    // to start a dense task, a tile of rows, and to store its states
  double dense_token_ns = 0;   // one token of a dense task, all rows of its tile
  double stream_task_ns = 0;   // to start a stream task
  double stream_token_ns = 0;  // one token of a stream task of at most half of its rows, alone on its worker

  // GPUs.
  // The least price, as a part of the cache's time, of tokens that a step which shares nothing reads again: reads from memory hide
  // the rest; the part of a dense task's start that the task before it on its worker does not hide, whose end its loads run beside.
  double unhidden_reread = 0, unhidden_start = 0;
  SmRates sm;
  GpuProbe probe;                 // zeros: not measured
  ShortDecodeRates short_decode;  // zeros: not known
};

// The names of the shipped models: those of machines/*.json.
std::vector<std::string_view> ShippedMachineNames();
// A shipped model, for `workers` cores of a CPU. NOT_FOUND lists the names.
Result<MachineModel> ShippedMachineModel(std::string_view name, int32_t workers = 1);

// JSON: one object with the fields of MachineModel by name. An object "per_worker" has rates of one worker, of which `workers` have
// so many times, and no more than the field of that name beside it, if there is one: core rates add up, memory bandwidth saturates
// at the socket's. "source" says where numbers come from. INVALID_ARGUMENT names a missing, unknown or non-positive field.
Result<MachineModel> ParseMachineModel(std::string_view json, int32_t workers = 1);
// For that number of workers: without "per_worker".
std::string ToJson(const MachineModel& model);
// A shipped model's name, or the same from and to a file; NOT_FOUND if it is neither.
Result<MachineModel> LoadMachineModel(const std::string& path, int32_t workers = 1);
Status SaveMachineModel(const MachineModel& model, const std::string& path);

}  // namespace coppice::attention
