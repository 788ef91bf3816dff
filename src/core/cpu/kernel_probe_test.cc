// Choices by measured times, with times that the tests invent; the file that keeps them. Layer: core, tests.
#include "core/cpu/kernel_probe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>

namespace coppice {
namespace {

using Mode = ProbeOptions::Mode;
using Source = ProbeResult::Source;

class KernelProbeTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Two kinds, two forms; `turn` says what a turn takes.
  ProbePlan Plan(std::function<double(size_t kind, size_t form)> turn) {
    return {.subject = "test", .kinds = {"few", "many"}, .forms = {"wide", "narrow"}, .prepare = [this, turn] {
              ++prepared_;
              return turn;
            }};
  }
  ProbeOptions Options() const { return {.folder = folder_, .cpu = "a cpu", .build = "b1", .seconds = 10}; }
  std::string File() const { return folder_ + "/cpu-test-b1.txt"; }
  std::string Read() const {
    std::ifstream file(File());
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_ = (std::filesystem::temp_directory_path() / ("kernel_probe_test" + std::to_string(getpid()))).string();
  int prepared_ = 0;
};

TEST_F(KernelProbeTest, ChoosesByKind) {
  const ProbeResult result =
      ProbeKernels(Plan([](size_t kind, size_t form) { return kind == 1 && form == 1 ? 1e-5 : 3e-5; }), Options());
  EXPECT_EQ(result.source, Source::kMeasured);
  EXPECT_EQ(result.Fastest(0), 0u);
  EXPECT_EQ(result.Fastest(1), 1u);
  EXPECT_NEAR(result.times[1][1].ns, 1e4, 1e-6);
  EXPECT_NEAR(result.times[1][1].ratio, 1.0 / 3, 1e-6);
}

// Four in a hundred is what differs from start to start, and so is being faster in six of nine rounds.
TEST_F(KernelProbeTest, KeepsTheFirstFormWithinNoise) {
  int turn = 0;
  const ProbeResult result = ProbeKernels(Plan([&](size_t kind, size_t form) {
                                            if (form == 0) return 1e-5;
                                            return kind == 0 ? 0.96e-5 : ++turn % 3 == 0 ? 1.2e-5 : 0.5e-5;
                                          }),
                                          Options());
  ASSERT_EQ(result.source, Source::kMeasured);
  EXPECT_LT(result.times[1][1].ratio, 0.6);
  EXPECT_EQ(result.Fastest(0), 0u);
  EXPECT_EQ(result.Fastest(1), 0u);
}

TEST_F(KernelProbeTest, AFileKeepsWhatWasMeasured) {
  const auto faster = [](size_t, size_t form) { return form == 1 ? 1e-5 : 2e-5; };
  const auto slower = [](size_t, size_t form) { return form == 1 ? 2e-5 : 1e-5; };
  EXPECT_EQ(ProbeKernels(Plan(faster), Options()).source, Source::kMeasured);
  const std::string text = Read();
  EXPECT_EQ(text.substr(0, text.find('\n')), "Coppice's CPU kernels 1, test; a cpu; build b1");
  const ProbeResult kept = ProbeKernels(Plan(slower), Options());
  EXPECT_EQ(kept.source, Source::kFile);
  EXPECT_EQ(kept.why, "read from " + File());
  EXPECT_EQ(prepared_, 1);
  EXPECT_EQ(kept.Fastest(0), 1u);
  EXPECT_EQ(kept.Fastest(1), 1u);

  ProbeOptions options = Options();
  options.mode = Mode::kOff;
  EXPECT_EQ(ProbeKernels(Plan(slower), options).source, Source::kNone);
  EXPECT_EQ(ProbeKernels(Plan(slower), options).Fastest(1), 0u);
  EXPECT_EQ(prepared_, 1);

  options.mode = Mode::kAgain;
  EXPECT_EQ(ProbeKernels(Plan(slower), options).Fastest(1), 0u);
  EXPECT_EQ(prepared_, 2);
  EXPECT_EQ(ProbeKernels(Plan(faster), Options()).Fastest(1), 0u);  // as the file now says
  EXPECT_EQ(prepared_, 2);
}

TEST_F(KernelProbeTest, AFileOfAnotherProcessorOrBuildIsMeasuredAnew) {
  const auto turn = [](size_t, size_t) { return 1e-5; };
  (void)ProbeKernels(Plan(turn), Options());
  ProbeOptions options = Options();
  options.cpu = "another cpu";
  EXPECT_EQ(ProbeKernels(Plan(turn), options).source, Source::kMeasured);
  options.build = "b2";
  EXPECT_EQ(ProbeKernels(Plan(turn), options).source, Source::kMeasured);
  ProbePlan other = Plan(turn);
  other.forms = {"wide", "wider"};
  EXPECT_EQ(ProbeKernels(other, options).source, Source::kMeasured);
}

TEST_F(KernelProbeTest, ADamagedFileIsMeasuredAnew) {
  const auto turn = [](size_t, size_t) { return 1e-5; };
  (void)ProbeKernels(Plan(turn), Options());
  const std::string whole = Read();
  const std::string header = whole.substr(0, whole.find('\n') + 1);
  for (const std::string& text :
       {std::string(), header, header + "few wide 1 1 1 narrow 1 1 1\n",
        header + "few wide 1 1 1 narrow -1 1 1\nmany wide 1 1 1 narrow 1 1 1\n",
        header + "few wide 1 1 1 narrow 1 nan 1\nmany wide 1 1 1 narrow 1 1 1\n",
        header + "few wide 1 1 1 avx9 1 1 1\nmany wide 1 1 1 avx9 1 1 1\n", std::string(100 << 10, 'x')}) {
    std::ofstream(File()) << text;
    EXPECT_EQ(ProbeKernels(Plan(turn), Options()).source, Source::kMeasured) << text.substr(0, 200);
    EXPECT_EQ(Read(), whole);
  }
}

TEST_F(KernelProbeTest, WithoutAFolderToWriteTo) {
  const auto turn = [](size_t, size_t) { return 1e-5; };
  ProbeOptions options = Options();
  options.folder = "/dev/null/none";
  EXPECT_EQ(ProbeKernels(Plan(turn), options).source, Source::kMeasured);
  options.folder.clear();
  EXPECT_EQ(ProbeKernels(Plan(turn), options).source, Source::kMeasured);
  options = Options();
  options.build.clear();
  EXPECT_EQ(ProbeKernels(Plan(turn), options).source, Source::kMeasured);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(KernelProbeTest, OutOfTimeKeepsTheTableAndNoFile) {
  ProbeOptions options = Options();
  options.seconds = 0.002;
  const auto begin = std::chrono::steady_clock::now();
  const ProbeResult result = ProbeKernels(Plan([](size_t, size_t form) {
                                            std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                            return form == 1 ? 1e-5 : 2e-5;
                                          }),
                                          options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(result.source, Source::kNone);
  EXPECT_EQ(result.Fastest(1), 0u);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(KernelProbeTest, OneFormIsNotTimed) {
  ProbePlan plan = Plan([](size_t, size_t) { return 1e-5; });
  plan.forms = {"wide"};
  EXPECT_EQ(ProbeKernels(plan, Options()).source, Source::kNone);
  EXPECT_EQ(prepared_, 0);
}

TEST_F(KernelProbeTest, ReportsSayWhatRunsAndWhy) {
  const ProbePlan plan = Plan([](size_t kind, size_t form) { return kind == 1 && form == 1 ? 1e-5 : 2e-5; });
  const ProbeReport report = ReportProbe(plan, ProbeKernels(plan, Options()), {"wide", "narrow"});
  EXPECT_EQ(report.lines[0].why, "narrow takes 1.00 of its time");
  EXPECT_EQ(report.lines[1].why, "wide takes 2.00 of its time");
  EXPECT_TRUE(report.lines[0].is_default);
  EXPECT_FALSE(report.lines[1].is_default);
  EXPECT_EQ(Summarise(report), "many by narrow");
}

TEST(KernelProbe, AnUnknownInstructionSetIsRefused) {
  const auto message = [](const char* isa) {
    setenv("COPPICE_CPU_ISA", isa, /*overwrite=*/1);
    const Status status = CheckForcedKernels();
    unsetenv("COPPICE_CPU_ISA");
    return status.message();
  };
  for (const std::string_view name : kCpuIsaNames) EXPECT_EQ(message(std::string(name).c_str()), "");
  EXPECT_EQ(message(""), "");
  EXPECT_EQ(message("avx2 "),
            "the environment variable COPPICE_CPU_ISA is \"avx2 \", expected one of baseline, avx2, avxvnni, avx512, avx512-bf16, "
            "amx-bf16");
}

TEST(KernelProbe, NamesThisProcessorAndBuild) {
  EXPECT_EQ(CpuModel(), CpuModel());
  EXPECT_FALSE(CpuModel().empty());
  EXPECT_EQ(CpuModel().find('\n'), std::string::npos);
  const std::string build = BuildId(reinterpret_cast<const void*>(&BuildId));
  EXPECT_EQ(build.find_first_not_of("0123456789abcdef"), std::string::npos) << build;
  EXPECT_EQ(BuildId(nullptr), "");
}

}  // namespace
}  // namespace coppice
