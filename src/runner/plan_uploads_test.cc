// Events that an upload of plans waits for, and streams that wait for it.
#include "runner/plan_uploads.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/owned_forest.h"
#include "attention/testing/forwarding_plan.h"
#include "core/thread_pool.h"

namespace coppice {
namespace {

using attention::AttentionPlan;
using attention::PrefixForestView;
using Log = std::vector<std::string>;

class NamedEvent final : public Event {
 public:
  explicit NamedEvent(std::string name) : name(std::move(name)) {}
  const std::string name;
};

// Streams and events that write down what they are asked for.
class LoggingDevice final : public Device {
 public:
  explicit LoggingDevice(Log* log) : log_(log) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  int ordinal() const override { return 0; }
  std::string name() const override { return "log"; }
  Executor* executor() const override { return nullptr; }
  int compute_capability() const override { return 90; }
  Result<MemoryInfo> GetMemoryInfo() const override { return Unimplemented("no memory"); }
  Result<DeviceMemory> Allocate(size_t, MemoryKind) override { return Unimplemented("no memory"); }
  Status Release(MemoryKind, bool) override { return Unimplemented("no memory"); }
  Status Restore(MemoryKind) override { return Unimplemented("no memory"); }
  Status Copy(void*, const void*, size_t, Stream) override { return Unimplemented("no memory"); }
  Status Zero(void*, size_t, Stream) override { return Unimplemented("no memory"); }

  Result<std::unique_ptr<OwnedStream>> CreateStream() override { return std::unique_ptr<OwnedStream>(new CopyStream); }
  Result<std::unique_ptr<Event>> CreateEvent() override {
    return std::unique_ptr<Event>(new NamedEvent("event " + std::to_string(num_events_++)));
  }
  Result<std::unique_ptr<Event>> CreateTimedEvent() override { return CreateEvent(); }
  Status Record(Event& event, Stream stream) override { return Note(stream, "records ", event); }
  Status Wait(Stream stream, const Event& event) override { return Note(stream, "waits for ", event); }
  Status Synchronize(const Event&) override { return OkStatus(); }
  Status Synchronize(Stream) override { return OkStatus(); }
  Result<bool> IsDone(const Event&) override { return true; }
  Result<double> SecondsBetween(const Event&, const Event&) override { return 0.0; }
  Status BeginCapture(Stream) override { return Unimplemented("no graphs"); }
  Result<std::unique_ptr<Graph>> EndCapture(Stream) override { return Unimplemented("no graphs"); }
  Status Launch(const Graph&, Stream) override { return Unimplemented("no graphs"); }

 private:
  struct CopyStream final : OwnedStream {
    Stream get() const override { return const_cast<CopyStream*>(this); }
  };
  Status Note(Stream stream, const std::string& what, const Event& event) {
    log_->push_back((stream == nullptr ? "computes: " : "copies: ") + what + static_cast<const NamedEvent&>(event).name);
    return OkStatus();
  }

  Log* log_;
  int num_events_ = 0;
};

// A plan for the CPU with two device images that only count.
class TwoImages final : public attention::ForwardingPlan {
 public:
  TwoImages(std::unique_ptr<AttentionPlan> plan, std::string name, Log* log)
      : ForwardingPlan(std::move(plan)), name_(std::move(name)), log_(log) {}

  Status Update(const PrefixForestView& forest) override {
    return fails ? Internal("as the test wants") : ForwardingPlan::Update(forest);
  }
  Status Upload(Stream stream) override {
    image_ = 1 - image_;
    log_->push_back((stream == nullptr ? "computes: " : "copies: ") + name_ + " to image " + std::to_string(image_));
    return OkStatus();
  }
  attention::LaunchKey launch_key() const override { return attention::LaunchKey(image_); }
  Status Run(const attention::BoundKv&, const attention::RunArgs&, Stream) override { return OkStatus(); }

  bool fails = false;

 private:
  std::string name_;
  Log* log_;
  int32_t image_ = 1;
};

class PlanUploadsTest : public ::testing::Test {
 protected:
  PlanUploadsTest() {
    attention::AddUniformTree({.levels = {{.tokens = 64}, {.tokens = 16, .fan_out = 3}}}, forest_);
    std::vector<LayerPlans::Group> groups;
    for (const char* name : {"a", "b"}) {
      auto plan = std::make_unique<TwoImages>(AttentionPlan::Create(*context_, kSpec, forest_.Capacity()).value(), name, &log_);
      plans_.push_back(plan.get());
      groups.push_back({std::move(plan), 1});
    }
    layers_ = std::make_unique<LayerPlans>(std::move(groups));
    uploads_ = PlanUploads::Create(&device_).value();
  }

  // Device calls of a step: event 0 is recorded behind the copies.
  Log Step(bool launches = true) {
    log_.clear();
    StepStats stats;
    const Status prepared = uploads_->Prepare(layers_.get(), forest_.Forest(), nullptr, &stats);
    const bool fails = plans_[1]->fails;
    EXPECT_EQ(prepared.ok(), !fails);
    EXPECT_TRUE(fails || !launches || uploads_->Launched(*layers_, nullptr).ok());
    return log_;
  }

  static constexpr attention::AttentionSpec kSpec{.num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  Log log_;
  LoggingDevice device_{&log_};
  std::unique_ptr<ThreadPool> threads_ = ThreadPool::Create(1).value();
  std::unique_ptr<attention::Context> context_ = attention::Context::CreateCpu(threads_.get()).value();
  attention::OwnedForest forest_;
  std::vector<TwoImages*> plans_;
  std::unique_ptr<LayerPlans> layers_;
  std::unique_ptr<PlanUploads> uploads_;
};

TEST_F(PlanUploadsTest, AnUploadWaitsForTheStepBeforeTheLast) {
  const Log first = {"copies: a to image 0", "copies: b to image 0", "copies: records event 0", "computes: waits for event 0",
                     "computes: records event 1"};
  EXPECT_EQ(Step(), first);
  const Log second = {"copies: a to image 1", "copies: b to image 1", "copies: records event 0", "computes: waits for event 0",
                      "computes: records event 2"};
  EXPECT_EQ(Step(), second) << "nothing reads image 1";
  const Log third = {"copies: waits for event 1", "copies: a to image 0",        "copies: b to image 0",
                     "copies: records event 0",   "computes: waits for event 0", "computes: records event 1"};
  EXPECT_EQ(Step(), third) << "not for the second step, which reads image 1";
  EXPECT_EQ(Step().front(), "copies: waits for event 2");
}

TEST_F(PlanUploadsTest, AStepThatWasNotLaunchedReadsNothing) {
  Step();
  Step(/*launches=*/false);
  EXPECT_EQ(Step().front(), "copies: waits for event 1") << "of the first step, whose image is written again";
}

TEST_F(PlanUploadsTest, PlansMayBeOfDifferentStepsAfterOneFailed) {
  Step();
  Step();
  plans_[1]->fails = true;
  Step();
  plans_[1]->fails = false;
  const Log after = Step();
  EXPECT_EQ(Log(after.begin(), after.begin() + 4),
            Log({"copies: waits for event 1", "copies: waits for event 2", "copies: a to image 1", "copies: b to image 0"}));
}

}  // namespace
}  // namespace coppice
