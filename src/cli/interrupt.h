// Ctrl-C as a request to finish: the first SIGINT is noted, the second one kills as usual.
// Layer: cli.
#pragma once

namespace coppice::cli {

// Installs the handler. Call it once the slow start is over: until then Ctrl-C should simply end the program.
void CatchFirstInterrupt();
bool Interrupted();

}  // namespace coppice::cli
