// Which of several forms of a kernel is the fastest on this processor. Forms are timed in turns at the first start, for some
// milliseconds; a file a processor and build keeps what was found. Decides nothing about kernels that it does not time.
// Layer: core, private.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

// Timed forms: every form in every kind of work. The first form is the one that runs where nothing was timed.
struct ProbePlan {
  std::string subject;                    // "products", "attention": one word, a part of the file's name
  std::vector<std::string> kinds, forms;  // one word each
  // Makes operands and returns what takes a turn: seconds of `form` in `kind`, tens of microseconds of work (TimeTurn). Called
  // where something is timed at all.
  std::function<std::function<double(size_t kind, size_t form)>()> prepare;
};

struct FormTime {
  double ns = 0;               // median of its turns
  double ratio = 1, high = 1;  // its time over the first form's in the same round: median, and the upper bound of 95 %
  // Not by chance, and by more than what differs from start to start.
  bool IsFaster() const { return high < kLeastGain; }

  static constexpr double kLeastGain = 0.95;
};

struct ProbeResult {
  enum class Source : uint8_t {
    kNone,      // nothing was timed: forms are those of the table
    kMeasured,  // now
    kFile,      // at an earlier start
  };
  Source source = Source::kNone;
  std::string why;                           // for people: "measured at this start", "read from PATH", "COPPICE_CPU_PROBE is off"
  std::vector<std::vector<FormTime>> times;  // [kind][form]; empty without a source

  // The fastest form of a kind: the first one unless another IsFaster.
  size_t Fastest(size_t kind) const;
};

struct ProbeOptions {
  enum class Mode : uint8_t {
    kOnce,   // the file's times, else timed and written
    kOff,    // neither read nor timed
    kAgain,  // timed and written whatever the file says
  };
  Mode mode = Mode::kOnce;
  std::string folder;      // of the file; empty: none is read or written
  std::string cpu, build;  // what the file is of, in one line each; a build without a name has no file
  double seconds = 0.025;  // the most that rounds may take; a kind whose turn comes later keeps its first form

  // COPPICE_CPU_PROBE (off, again; anything else: once), CacheFolder(), CpuModel(), and the build id of the program or library that
  // `code` lies in.
  static ProbeOptions OfProcess(const void* code);
};

// Thread-safe. A file that is missing, of another processor, build or plan, or damaged is as none; one that cannot be written
// changes nothing but the next start. Where time ran out, nothing is written.
ProbeResult ProbeKernels(const ProbePlan& plan, const ProbeOptions& options);

// The chosen forms and why, for people.
struct ProbeReport {
  struct Line {
    std::string kind, form;
    bool is_default = true;                               // the first form
    std::string why;                                      // "avx512 takes 1.93 of its time", or why nothing was timed
    std::vector<std::pair<std::string, FormTime>> times;  // by form; empty: nothing was timed
  };
  std::string why;  // of all: ProbeResult::why
  std::vector<Line> lines;
};
// `chosen`: the form of each kind.
ProbeReport ReportProbe(const ProbePlan& plan, const ProbeResult& probe, const std::vector<std::string>& chosen);
// In one line, without kinds that have their first form: "bf16-many by avx512".
std::string Summarise(const ProbeReport& report);

// Values of COPPICE_CPU_ISA, in rising order.
inline constexpr std::array<std::string_view, 6> kCpuIsaNames = {"baseline", "avx2",        "avxvnni",
                                                                 "avx512",   "avx512-bf16", "amx-bf16"};
// Whether COPPICE_CPU_ISA says anything: then no measured time chooses.
bool KernelsAreForced();
// INVALID_ARGUMENT where it says none of those names.
Status CheckForcedKernels();

// Seconds that this thread computed in `body`: what other programs do meanwhile does not count.
double TimeTurn(const std::function<void()>& body);

// Name, signature and features of this processor in one line: equal where kernels run alike.
std::string CpuModel();
// The linker's id of the program or library that `code` lies in, in hexadecimal digits; empty: it has none.
std::string BuildId(const void* code);

}  // namespace coppice
