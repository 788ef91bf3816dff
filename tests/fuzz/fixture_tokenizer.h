// The tokenizer of tests/data/tokenizer with a chat template that shows messages and tools as Qwen's does, for targets that read
// requests. Layer: tests.
#pragma once

#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace coppice::fuzz {

inline std::unique_ptr<Tokenizer> FixtureTokenizer() {
  std::ifstream file(COPPICE_TEST_DATA "/tokenizer/tokenizer.json", std::ios::binary);
  TokenizerData data = ParseHuggingFaceTokenizer({std::istreambuf_iterator<char>(file), {}}, {}).value();
  data.chat_template =
      "{% if tools %}{{ '<|im_start|>system\\n<tools>' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}"
      "{{ '\\n</tools>\\n<tool_call>\\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\\n</tool_call><|im_end|>\\n' "
      "}}"
      "{% endif %}"
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% "
      "endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  return CreateTokenizer(std::move(data)).value();
}

}  // namespace coppice::fuzz
