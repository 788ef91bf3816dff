// A model's output, as the items of an answer of OpenAI's /v1/responses: messages and calls of functions, in the order of the
// output. The same however the output is cut into pieces. Layer: openai.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "openai/tool_call_parser.h"

namespace coppice::openai {

struct OutputItem {
  enum class Type : uint8_t { kMessage, kFunctionCall };

  Type type = Type::kMessage;
  std::string text;       // of a message; of a call its arguments
  std::string name;       // of the function
  int32_t call = 0;       // among the output's calls
  bool complete = false;  // else the output ended, or went on with something else, within it
};

// Of one sample. Thread-compatible.
class OutputItems {
 public:
  // Changes of an item by a piece of output, in this order.
  struct Change {
    size_t item = 0;
    bool begins = false;
    std::string added;  // to its text
    bool ends = false;
  };

  // `tools` outlives this; null: all of the output is text.
  explicit OutputItems(const ToolCalls* tools);

  std::vector<Change> Push(std::string_view text);
  // A message takes what comes with no text.
  std::vector<Change> BeginMessage();
  // The output has ended; `by_itself`: it was not cut off. There is one item at least then. No change has the end of the last one,
  // if that was not sent yet.
  std::vector<Change> Finish(bool by_itself);

  const std::vector<OutputItem>& items() const { return items_; }
  std::vector<OutputItem> TakeItems() { return std::move(items_); }
  // The end of the last item was not sent.
  bool last_is_open() const { return open_; }

 private:
  using Changes = std::vector<Change>;

  void Apply(const ParsedOutput& output, Changes* changes);
  void AddText(std::string_view text, Changes* changes);
  void AddCall(const ParsedOutput::Call& call, Changes* changes);
  void Begin(OutputItem item, Changes* changes);
  void End(bool complete, Changes* changes);
  // That of the last item.
  Change& ChangeOf(Changes* changes) const;
  bool InMessage() const { return open_ && items_.back().type == OutputItem::Type::kMessage; }
  bool InCall(int32_t call) const { return open_ && !InMessage() && items_.back().call == call; }

  std::optional<ToolCallParser> parser_;
  std::vector<OutputItem> items_;
  bool open_ = false;
};

}  // namespace coppice::openai
