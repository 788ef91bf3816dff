// Where this program keeps what it measured of a machine. Layer: core.
#pragma once

#include <string>

namespace coppice {

// $COPPICE_CACHE_DIR, $XDG_CACHE_HOME/coppice or ~/.cache/coppice, the first that is set; empty: none is. It may not exist yet.
std::string CacheFolder();

// A file's name of letters, digits, "-" and "." alone: other characters become "_".
std::string AsFileName(std::string text);

}  // namespace coppice
