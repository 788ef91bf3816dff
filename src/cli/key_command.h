// `coppice key`: draws an API key for `coppice serve --api-keys`. Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddKeyCommand(CLI::App& app);

}  // namespace coppice::cli
