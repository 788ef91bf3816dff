// Fields of a chat's request about its prompt beside messages and tools: variables of the model's chat template, and where the
// prompt ends.
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
// Variables that the template does not read count as unknown, but for the two that OpenAI's clients send to every model. `renderer`
// may be null: the template reads none then.
ChatFields TakeChatFields(FieldReader& fields, const ChatRenderer* renderer);

}  // namespace coppice::openai
