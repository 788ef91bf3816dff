#include "core/cpu/kernel_probe.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <locale>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/cache_folder.h"
#include "core/file.h"
#include "core/interleaved_timing.h"
#include "core/quoted.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace coppice {
namespace {

constexpr int kFileVersion = 1;
constexpr size_t kMostBytes = 64 << 10;  // of a file; those there are have about one thousand
// Eight of nine rounds must say that a form is faster (EstimateMedian).
constexpr int kRounds = 9;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string Header(const ProbePlan& plan, const ProbeOptions& options) {
  return "Coppice's CPU kernels " + std::to_string(kFileVersion) + ", " + plan.subject + "; " + options.cpu + "; build " +
         options.build;
}

std::string PathOf(const ProbePlan& plan, const ProbeOptions& options) {
  if (options.folder.empty() || options.build.empty()) return {};
  const std::string name = "cpu-" + plan.subject + "-" + options.build + ".txt";
  return std::filesystem::path(options.folder) / AsFileName(name);
}

// A line a kind: its name, then for each form its name and three numbers.
std::string Format(const ProbePlan& plan, const ProbeOptions& options, const ProbeResult& result) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << Header(plan, options) << "\n";
  for (size_t kind = 0; kind < plan.kinds.size(); ++kind) {
    text << plan.kinds[kind];
    for (size_t form = 0; form < plan.forms.size(); ++form) {
      const FormTime& time = result.times[kind][form];
      text << " " << plan.forms[form] << " " << time.ns << " " << time.ratio << " " << time.high;
    }
    text << "\n";
  }
  return text.str();
}

bool Parse(const std::string& text, const ProbePlan& plan, const ProbeOptions& options, ProbeResult* result) {
  std::istringstream lines(text);
  lines.imbue(std::locale::classic());
  std::string line, word;
  if (!std::getline(lines, line) || line != Header(plan, options)) return false;
  std::vector<std::vector<FormTime>> times(plan.kinds.size(), std::vector<FormTime>(plan.forms.size()));
  for (size_t kind = 0; kind < plan.kinds.size(); ++kind) {
    if (!(lines >> word) || word != plan.kinds[kind]) return false;
    for (size_t form = 0; form < plan.forms.size(); ++form) {
      FormTime& time = times[kind][form];
      if (!(lines >> word >> time.ns >> time.ratio >> time.high) || word != plan.forms[form]) return false;
      if (!(time.ns > 0) || !(time.ratio > 0) || !(time.high >= time.ratio)) return false;
    }
  }
  result->times = std::move(times);
  return true;
}

// Whether all kinds were timed before the time was over.
bool Measure(const ProbePlan& plan, double seconds, ProbeResult* result) {
  const double end = Now() + seconds;
  const std::function<double(size_t, size_t)> take_turn = plan.prepare();
  for (size_t kind = 0; kind < plan.kinds.size(); ++kind) {
    for (size_t form = 0; form < plan.forms.size(); ++form) take_turn(kind, form);  // pages, caches, clocks
    const Result<std::vector<InterleavedTimes>> turns =
        TimeInTurns(plan.forms.size(), {.repeats = kRounds}, [&](size_t form) -> Result<double> {
          if (Now() > end) return Unavailable("out of time");
          return take_turn(kind, form);
        });
    if (!turns.ok()) return false;
    std::vector<FormTime> times;
    for (const InterleavedTimes& form : *turns)
      times.push_back({.ns = 1e9 * form.Median(), .ratio = form.over_first.median, .high = form.over_first.high});
    result->times.push_back(std::move(times));
  }
  return true;
}

void Write(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  (void)ReplaceFile(path, text, Lasting::kNo);  // measured anew where it is lost
}

std::string TwoDigits(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", value);
  return text;
}

#if defined(__x86_64__)
std::array<unsigned, 4> Cpuid(unsigned leaf, unsigned subleaf) {
  std::array<unsigned, 4> r{};
  if (__get_cpuid_count(leaf, subleaf, &r[0], &r[1], &r[2], &r[3]) == 0) r = {};
  return r;
}
#endif

}  // namespace

size_t ProbeResult::Fastest(size_t kind) const {
  size_t best = 0;
  if (times.empty()) return best;
  for (size_t form = 1; form < times[kind].size(); ++form) {
    if (times[kind][form].IsFaster() && times[kind][form].ratio < times[kind][best].ratio) best = form;
  }
  return best;
}

ProbeResult ProbeKernels(const ProbePlan& plan, const ProbeOptions& options) {
  using Mode = ProbeOptions::Mode;
  ProbeResult result;
  if (options.mode == Mode::kOff) {
    result.why = "COPPICE_CPU_PROBE is off";
    return result;
  }
  if (plan.forms.size() < 2) {
    result.why = "this processor runs no other";
    return result;
  }
  const std::string path = PathOf(plan, options);
  if (options.mode == Mode::kOnce && !path.empty()) {
    const Result<std::string> text = ReadRegularFile(path, kMostBytes);
    if (text.ok() && Parse(*text, plan, options, &result)) {
      result.source = ProbeResult::Source::kFile;
      result.why = "read from " + path;
      return result;
    }
  }
  if (!Measure(plan, options.seconds, &result)) {
    result.times.clear();
    result.why = "other work left no time to measure";
    return result;
  }
  result.source = ProbeResult::Source::kMeasured;
  result.why = "measured at this start";
  Write(path, Format(plan, options, result));
  return result;
}

ProbeReport ReportProbe(const ProbePlan& plan, const ProbeResult& probe, const std::vector<std::string>& chosen) {
  ProbeReport report{.why = probe.why};
  for (size_t kind = 0; kind < plan.kinds.size(); ++kind) {
    ProbeReport::Line line{.kind = plan.kinds[kind], .form = chosen[kind]};
    line.is_default = plan.forms.empty() || line.form == plan.forms.front();
    const auto at = std::ranges::find(plan.forms, line.form);
    if (probe.times.empty() || at == plan.forms.end()) {
      line.why = probe.why;
    } else {
      const std::vector<FormTime>& times = probe.times[kind];
      const double own = times[at - plan.forms.begin()].ratio;
      for (size_t form = 0; form < plan.forms.size(); ++form) {
        line.times.emplace_back(plan.forms[form], times[form]);
        if (plan.forms[form] == line.form) continue;
        line.why +=
            (line.why.empty() ? "" : ", ") + plan.forms[form] + " takes " + TwoDigits(times[form].ratio / own) + " of its time";
      }
    }
    report.lines.push_back(std::move(line));
  }
  return report;
}

std::string Summarise(const ProbeReport& report) {
  std::string others;
  for (const ProbeReport::Line& line : report.lines) {
    if (line.is_default) continue;
    others += (others.empty() ? "" : ", ") + line.kind + " by " + line.form;
  }
  return others;
}

ProbeOptions ProbeOptions::OfProcess(const void* code) {
  ProbeOptions options{.folder = CacheFolder(), .cpu = CpuModel(), .build = BuildId(code)};
  const char* probe = std::getenv("COPPICE_CPU_PROBE");
  const std::string_view mode = probe == nullptr ? "" : probe;
  if (mode == "off") options.mode = Mode::kOff;
  if (mode == "again") options.mode = Mode::kAgain;
  return options;
}

bool KernelsAreForced() {
  const char* const isa = std::getenv("COPPICE_CPU_ISA");
  return isa != nullptr && *isa != '\0';
}

Status CheckForcedKernels() {
  if (!KernelsAreForced()) return OkStatus();
  const std::string_view isa = std::getenv("COPPICE_CPU_ISA");
  if (std::ranges::find(kCpuIsaNames, isa) != kCpuIsaNames.end()) return OkStatus();
  std::string names;
  for (const std::string_view name : kCpuIsaNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return InvalidArgument("the environment variable COPPICE_CPU_ISA is " + Quoted(isa) + ", expected one of " + names);
}

double TimeTurn(const std::function<void()>& body) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  body();
  return now() - begin;
}

std::string CpuModel() {
#if defined(__x86_64__)
  std::array<unsigned, 12> words{};
  for (unsigned i = 0; i < 3; ++i) std::ranges::copy(Cpuid(0x80000002u + i, 0), words.begin() + 4 * i);
  char name[sizeof(words) + 1] = {};
  std::memcpy(name, words.data(), sizeof(words));
  const std::array<unsigned, 4> signature = Cpuid(1, 0), features = Cpuid(7, 0), more = Cpuid(7, 1);
  char numbers[64];
  std::snprintf(numbers, sizeof(numbers), " %08x %08x %08x %08x %08x", signature[0], features[1], features[2], features[3],
                more[0]);
  std::string text = name;
  std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < ' '; });
  while (text.ends_with(' ')) text.pop_back();
  return text + numbers;
#else
  return "unknown";
#endif
}

std::string BuildId(const void* code) {
  struct Search {
    uintptr_t here;
    std::string id;
  } search{reinterpret_cast<uintptr_t>(code), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        const std::span segments(info->dlpi_phdr, info->dlpi_phnum);
        const bool is_ours = std::ranges::any_of(segments, [&](const ElfW(Phdr) & segment) {
          const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          return segment.p_type == PT_LOAD && search.here >= begin && search.here < begin + segment.p_memsz;
        });
        if (!is_ours) return 0;
        for (const ElfW(Phdr) & segment : segments) {
          if (segment.p_type != PT_NOTE) continue;
          const auto* note = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
          const char* const end = note + segment.p_memsz;
          const auto round_up = [](size_t n) { return (n + 3) / 4 * 4; };
          while (end - note >= static_cast<ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
            ElfW(Nhdr) header;
            std::memcpy(&header, note, sizeof(header));
            const size_t name = round_up(header.n_namesz), bytes = round_up(header.n_descsz);
            if (static_cast<size_t>(end - note) < sizeof(header) + name + bytes) break;
            if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(note + sizeof(header), "GNU", 4) == 0) {
              for (size_t i = 0; i < std::min<size_t>(header.n_descsz, 10); ++i) {
                char hex[3];
                std::snprintf(hex, sizeof(hex), "%02x", static_cast<unsigned char>(note[sizeof(header) + name + i]));
                search.id += hex;
              }
            }
            note += sizeof(header) + name + bytes;
          }
        }
        return 1;
      },
      &search);
  return search.id;
}

}  // namespace coppice
