// Input: a chat template, a NUL byte, the content of a message. Rendering stops at its limits, so each input ends soon.
#include "tests/fuzz/fuzz_target.h"
#include "tokenizer/tokenizer.h"

using namespace coppice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [source, content] = fuzz::SplitInput<2>(data, size);
  const Result<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Parse(source);
  if (!chat.ok()) return 0;
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", content}, {"assistant", "Yes?\n"}, {"user", "Why"}};
  for (const bool add_generation_prompt : {true, false}) {
    (void)(*chat)->Render(messages, {.bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = add_generation_prompt});
  }
  return 0;
}
