// `coppice batch`: a file of OpenAI batch requests in, a file of responses out; requests that share a prefix run together.
// docs/batch.md has the formats. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBatchCommand(CLI::App& app);

}  // namespace coppice::cli
