// What a chat's request says of its prompt beside messages and tools: variables of the model's chat template, and where the prompt
// ends.
// Layer: openai.
#pragma once

#include <nlohmann/json.hpp>

#include "openai/field_reader.h"
#include "tokenizer/chat_renderer.h"

namespace coppice::openai {

struct ChatFields {
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// chat_template_kwargs, reasoning_effort, verbosity, enable_thinking, documents, add_generation_prompt, continue_final_message.
// What the template does not read is as good as unknown, but for the two that OpenAI's clients send to every model. `renderer` may
// be null: nothing is read then.
ChatFields TakeChatFields(FieldReader& fields, const ChatRenderer* renderer);

}  // namespace coppice::openai
