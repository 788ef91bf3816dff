// Log lines as JSON objects. Layer: cli.
#pragma once

namespace coppice::cli {

// From now on each line of the log is {"time", "level", "event": {...}} where what is logged is an object of JSON, as that of a
// request is, else {"time", "level", "message": "..."}.
void LogAsJson();

}  // namespace coppice::cli
