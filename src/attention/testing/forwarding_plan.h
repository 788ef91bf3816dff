// A plan that leaves everything to another one, for tests to override a part. Layer: attention, tests.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/work_list.h"

namespace coppice::attention {

class ForwardingPlan : public InspectablePlan {
 public:
  explicit ForwardingPlan(std::unique_ptr<AttentionPlan> plan) : plan_(std::move(plan)) {}

  Status Update(const PrefixForestView& forest) override { return plan_->Update(forest); }
  Status Upload(Stream stream) override { return plan_->Upload(stream); }
  LaunchKey launch_key() const override { return plan_->launch_key(); }
  Status Run(const BoundKv& kv, const RunArgs& args, Stream stream) override { return plan_->Run(kv, args, stream); }
  PlanStats PlannedStats() const override { return Of(*plan_).PlannedStats(); }
  PlanView View() const override { return Of(*plan_).View(); }
  PlanStats Stats() const override { return plan_->Stats(); }
  std::vector<NodeRead> NodeReads() const override { return Of(*plan_).NodeReads(); }
  PlanReads Reads() override { return plan_->Reads(); }
  std::string Explain() const override { return plan_->Explain(); }
  std::string Dump() const override { return plan_->Dump(); }

 private:
  std::unique_ptr<AttentionPlan> plan_;
};

}  // namespace coppice::attention
