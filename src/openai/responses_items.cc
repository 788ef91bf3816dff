#include "openai/responses_items.h"

#include <algorithm>
#include <utility>

namespace coppice::openai {

OutputItems::OutputItems(const ToolCalls* tools) {
  if (tools) parser_.emplace(tools);
}

std::vector<OutputItems::Change> OutputItems::Push(std::string_view text) {
  Changes changes;
  if (!parser_) {
    AddText(text, &changes);
    return changes;
  }
  ParsedOutput output;
  parser_->Push(text, &output);
  Apply(output, &changes);
  return changes;
}

std::vector<OutputItems::Change> OutputItems::BeginMessage() {
  Changes changes;
  if (!InMessage()) Begin({}, &changes);
  return changes;
}

std::vector<OutputItems::Change> OutputItems::Finish(bool by_itself) {
  Changes changes;
  if (parser_) {
    ParsedOutput output;
    parser_->Finish(&output);
    Apply(output, &changes);
  }
  if (items_.empty()) Begin({}, &changes);
  if (InMessage()) items_.back().complete = by_itself;
  return changes;
}

void OutputItems::Apply(const ParsedOutput& output, Changes* changes) {
  const auto end_if_whole = [&](int32_t call) {
    if (InCall(call) && std::ranges::find(output.whole, call) != output.whole.end()) End(/*complete=*/true, changes);
  };
  if (open_ && !InMessage() && (output.calls.empty() || output.calls.front().index != items_.back().call))
    end_if_whole(items_.back().call);
  size_t written = 0;
  for (const ParsedOutput::Call& call : output.calls) {
    AddText(std::string_view(output.content).substr(written, call.content_before - written), changes);
    written = call.content_before;
    AddCall(call, changes);
    end_if_whole(call.index);
  }
  AddText(std::string_view(output.content).substr(written), changes);
}

void OutputItems::AddText(std::string_view text, Changes* changes) {
  if (text.empty()) return;
  if (!InMessage()) Begin({}, changes);
  items_.back().text += text;
  ChangeOf(changes).added += text;
}

void OutputItems::AddCall(const ParsedOutput::Call& call, Changes* changes) {
  if (call.begins) Begin({.type = OutputItem::Type::kFunctionCall, .name = call.name, .call = call.index}, changes);
  if (call.arguments.empty()) return;
  items_.back().text += call.arguments;
  ChangeOf(changes).added += call.arguments;
}

void OutputItems::Begin(OutputItem item, Changes* changes) {
  if (open_) End(/*complete=*/InMessage(), changes);
  items_.push_back(std::move(item));
  open_ = true;
  ChangeOf(changes).begins = true;
}

void OutputItems::End(bool complete, Changes* changes) {
  items_.back().complete = complete;
  ChangeOf(changes).ends = true;
  open_ = false;
}

OutputItems::Change& OutputItems::ChangeOf(Changes* changes) const {
  const size_t item = items_.size() - 1;
  if (changes->empty() || changes->back().item != item) changes->push_back({.item = item});
  return changes->back();
}

}  // namespace coppice::openai
