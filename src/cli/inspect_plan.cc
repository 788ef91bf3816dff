#include "cli/inspect_plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/cuda/lower/explain_tasks.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/lowered_plan.h"
#include "attention/machine_model.h"
#include "attention/plan_io.h"
#include "attention_tools/bench_device.h"
#include "cli/bench/plan_timing.h"
#include "cli/bench/tree_problem.h"
#include "cli/parsed_option.h"
#include "cli/read_file.h"
#include "cli/run_options.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/thread_pool.h"
#include "hub/model_store.h"
#include "model/checkpoint.h"

namespace coppice::cli {
namespace {

using attention::PlanDump;
using attention::SharePolicy;

struct InspectPlanOptions {
  std::string tree = "2048,64x32", replay, model, machine, device = "cpu";
  attention::AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  DType dtype = DType::kBF16;
  SharingMode sharing = SharingMode::kTree;
  bool force_sharing = false, json = false, no_measure = false;
  int32_t page_size = 16, queries = 1;
  int threads = 0;
};

SharePolicy PolicyOf(SharingMode sharing) {
  switch (sharing) {
    case SharingMode::kTree: return SharePolicy::kTree;
    case SharingMode::kOneLevel: return SharePolicy::kOneLevel;
    case SharingMode::kStore:
    case SharingMode::kNone: return SharePolicy::kStore;
  }
  return SharePolicy::kTree;
}

// A plan of a machine that need not be this one.
struct Explained {
  std::string text, dump;
};

Result<Explained> Explain(const attention::Planner& planner) {
  if (!planner.traits().cuts_kv || planner.machine().sm.num_sms == 0) {
    return Explained{.text = planner.Explain(), .dump = attention::DumpPlan(planner)};
  }
  const attention::cuda::LoweredPlan lowered(planner);
  return Explained{.text = planner.Explain() + attention::cuda::ExplainTasks(lowered.view()),
                   .dump = attention::DumpPlan(planner, attention::cuda::DumpTasks(lowered.view()))};
}

// As a device of that model plans: Hopper's kernels.
Result<Explained> ExplainForGpu(PlanDump problem, const attention::MachineModel& machine) {
  COPPICE_ASSIGN_OR_RETURN(const attention::cuda::KernelChoice kernel,
                           attention::cuda::ChooseKernel(attention::CudaKernels::kAuto, 9, 0, problem.spec, problem.page_size));
  problem.traits = attention::cuda::TraitsOf(kernel, problem.spec, machine.sm.num_sms);
  problem.machine = machine;
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::Planner> planner, attention::ReplayPlan(problem));
  return Explain(*planner);
}

Result<PlanDump> MakeProblem(const InspectPlanOptions& options) {
  PlanDump problem;
  problem.spec = options.spec;
  problem.spec.q_dtype = problem.spec.kv_dtype = options.dtype;
  problem.options = {.policy = PolicyOf(options.sharing), .force_sharing = options.force_sharing};
  COPPICE_ASSIGN_OR_RETURN(const std::vector<TreeLevel> levels, ParseTree(options.tree));
  COPPICE_RETURN_IF_ERROR(MakeTree(levels, options.page_size, options.queries, options.sharing, problem));
  return problem;
}

struct Measured {
  PlanTiming timing;
  std::string where;  // for people
  std::pair<std::string, nlohmann::ordered_json> machine;
};

Result<ExitCode> PrintPlan(const Explained& plan, const std::optional<Measured>& measured, bool json) {
  if (!measured) {
    COPPICE_RETURN_IF_ERROR(Print(json ? plan.dump + "\n" : ForTerminal(plan.text)));
    return ExitCode::kOk;
  }
  const PlanTiming& timing = measured->timing;
  if (json) {
    nlohmann::ordered_json dump = nlohmann::ordered_json::parse(plan.dump);
    dump["measured"] = {{"median_ns", timing.median_ns},
                        {"fastest_ns", timing.fastest_ns},
                        {"slowest_ns", timing.slowest_ns},
                        {"runs", timing.runs},
                        {measured->machine.first, measured->machine.second}};
    COPPICE_RETURN_IF_ERROR(Print(dump.dump() + "\n"));
    return ExitCode::kOk;
  }
  COPPICE_RETURN_IF_ERROR(Print(ForTerminal(
      plan.text + fmt::format("measured here: {:.2f} us (median of {} runs, {:.2f} to {:.2f}; {})\n", timing.median_ns / 1e3,
                              timing.runs, timing.fastest_ns / 1e3, timing.slowest_ns / 1e3, measured->where))));
  return ExitCode::kOk;
}

// Planned and, if asked for, run by the context's backend.
Result<Explained> ExplainHere(attention::Context& context, const PlanDump& problem) {
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::AttentionPlan> plan,
                           attention::AttentionPlan::Create(context, problem.spec, problem.capacity, problem.options));
  COPPICE_RETURN_IF_ERROR(plan->Update(problem.Forest()));
  COPPICE_RETURN_IF_ERROR(plan->Upload());
  return Explained{.text = plan->Explain(), .dump = plan->Dump()};
}

Result<ExitCode> InspectOnDevice(const InspectPlanOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(PlanDump problem, MakeProblem(options));
  problem.options.machine_model_path = options.machine;
  if (options.no_measure) {
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::Context> context, attention::Context::CreateCuda(0));
    COPPICE_ASSIGN_OR_RETURN(const Explained plan, ExplainHere(*context, problem));
    return PrintPlan(plan, std::nullopt, options.json);
  }
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::BenchDevice> device, attention::MakeCudaBenchDevice(0));
  COPPICE_ASSIGN_OR_RETURN(const Explained plan, ExplainHere(device->backend(), problem));
  COPPICE_ASSIGN_OR_RETURN(const PlanTiming timing, TimePlan(*device, problem));
  return PrintPlan(plan, Measured{.timing = timing, .where = device->name(), .machine = {"device", device->name()}}, options.json);
}

Result<ExitCode> InspectOnCpu(const InspectPlanOptions& options, PlanDump problem, std::optional<Explained> plan) {
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> threads, ThreadPool::Create(options.threads));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::Context> context, attention::Context::CreateCpu(threads.get()));
  if (!plan) {
    COPPICE_ASSIGN_OR_RETURN(plan, ExplainHere(*context, problem));
  }
  if (options.no_measure) return PrintPlan(*plan, std::nullopt, options.json);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<RunnablePlan> runnable, RunnablePlan::Create(*context, problem));
  COPPICE_ASSIGN_OR_RETURN(const PlanTiming timing, TimePlan(*runnable));
  const Measured measured{
      .timing = timing, .where = fmt::format("{} threads", threads->num_workers()), .machine = {"threads", threads->num_workers()}};
  return PrintPlan(*plan, measured, options.json);
}

// The heads of a model's attention; of layers that attend to a window alone where all of them do.
Status TakeModel(const std::string& name, attention::AttentionSpec* spec) {
  COPPICE_ASSIGN_OR_RETURN(const std::string path, hub::FindModel(name));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  const ModelConfig& config = checkpoint->config();
  spec->num_qo_heads = config.num_qo_heads;
  spec->num_kv_heads = config.num_kv_heads;
  spec->head_dim = config.head_dim;
  spec->sm_scale = config.sm_scale;
  spec->soft_cap = config.soft_cap;
  spec->window = config.window;
  return OkStatus();
}

// Decisions are those of the machine that wrote the dump; only the measurement is this machine's.
Result<ExitCode> InspectReplay(const InspectPlanOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.replay, "--replay"));
  COPPICE_ASSIGN_OR_RETURN(PlanDump problem, attention::ParsePlanDump(text));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::Planner> planner, attention::ReplayPlan(problem));
  COPPICE_ASSIGN_OR_RETURN(Explained plan, Explain(*planner));
  return InspectOnCpu(options, std::move(problem), std::move(plan));
}

Result<ExitCode> InspectPlan(InspectPlanOptions options) {
  if (!options.model.empty()) COPPICE_RETURN_IF_ERROR(TakeModel(options.model, &options.spec));
  if (!options.replay.empty()) return InspectReplay(options);
  if (options.device == "cuda") return InspectOnDevice(options);
  COPPICE_ASSIGN_OR_RETURN(PlanDump problem, MakeProblem(options));
  if (options.machine.empty()) return InspectOnCpu(options, std::move(problem), std::nullopt);
  COPPICE_ASSIGN_OR_RETURN(const attention::MachineModel machine, attention::LoadMachineModel(options.machine));
  if (machine.sm.num_sms > 0) {  // nothing here runs it
    COPPICE_ASSIGN_OR_RETURN(const Explained plan, ExplainForGpu(std::move(problem), machine));
    return PrintPlan(plan, std::nullopt, options.json);
  }
  problem.options.machine_model_path = options.machine;
  return InspectOnCpu(options, std::move(problem), std::nullopt);
}

}  // namespace

Command AddInspectPlanCommand(CLI::App& inspect) {
  const auto options = std::make_shared<InspectPlanOptions>();
  CLI::App* command = inspect.add_subcommand(
      "plan", "How the attention planner cuts a prefix tree into work, and why; docs/cli.md explains its words");
  CLI::Option* tree =
      command
          ->add_option("--tree", options->tree,
                       "Levels from the root: TOKENS or TOKENSxNODES below each parent; the last level are the requests")
          ->capture_default_str();
  CLI::Option* replay = command->add_option("--replay", options->replay, "A plan dumped by AttentionPlan::Dump or --json")
                            ->excludes(tree)
                            ->check(NotEmpty());
  CLI::Option* model =
      command
          ->add_option("-m,--model", options->model,
                       "Heads and window of this model: a GGUF file, a Hugging Face folder, or the name of a pulled one")
          ->excludes(replay)
          ->check(NotEmpty());
  for (const auto& [name, field, help] : {std::tuple("--qo-heads", &options->spec.num_qo_heads, "Query heads"),
                                          std::tuple("--kv-heads", &options->spec.num_kv_heads, "KV heads"),
                                          std::tuple("--head-dim", &options->spec.head_dim, "Elements of a head"),
                                          std::tuple("--window", &options->spec.window, "Sliding window in tokens; 0: none")}) {
    command->add_option(name, *field, help)->excludes(model)->capture_default_str();
  }
  command->add_flag("--deterministic", options->spec.deterministic, "Plan for bits that do not depend on the batch");
  AddParsed<DType>(*command, "--dtype", options->dtype, ParseDType, "bf16 (default), f16 or f32");
  AddParsed<SharingMode>(*command, "--sharing", options->sharing, ParseSharingMode, "tree (default), one-level, store or none");
  command->add_flag("--force-sharing", options->force_sharing, "Share wherever the tree allows, whatever the cost model says");
  command->add_option("--page-size", options->page_size, "Tokens per KV page")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--queries", options->queries, "Queries of each request: 1 decodes, more is a draft or a chunk")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--machine", options->machine,
                      "Whose constants to plan by: a name such as h200 or zen5 (of a GPU, as on that GPU, which nothing here "
                      "needs to have), or a file of `coppice bench calibrate`; default: this machine");
  command->add_option("--device", options->device, "cpu, or cuda: plan and run on device 0 (of a build with -DCOPPICE_CUDA=ON)")
      ->excludes(replay)
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Worker threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--no-measure", options->no_measure, "Do not run the plan");
  command->add_flag("--json", options->json, "Print the plan as JSON, which --replay reads");
  return {command, [options] { return InspectPlan(*options); }};
}

}  // namespace coppice::cli
