#include "cli/standard_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/file.h"

namespace coppice::cli {

Status Print(std::string_view text) { return WriteAll(STDOUT_FILENO, text, "standard output"); }

void ReserveStandardDescriptors() {
  // The wrong way round: a program that reads a closed input, or writes to a closed output, is to learn of it.
  for (const int access : {O_WRONLY, O_RDONLY, O_WRONLY}) {
    static int fd = 0;
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", access) != fd && open("/", O_PATH) != fd) std::abort();
    ++fd;
  }
}

}  // namespace coppice::cli
