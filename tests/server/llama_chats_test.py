"""300 random chats through llama.cpp's server and `coppice serve` with the same GGUF file: the prompts have the same tokens, but for texts of control
tokens in what messages say, which llama.cpp takes for the tokens and Coppice for text (docs/server.md)."""

import json
import os
import random
import sys
import unittest
import urllib.request

from packages import install_or_skip
from server_process import Server, default_model_or_skip

sys.path.insert(0, install_or_skip("llama"))

import xllamacpp  # noqa: E402

MODEL = default_model_or_skip()
CHATS, CONTEXT, SEED = 300, 8192, 46
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "<jupyter_start>"]  # of SmolLM2's vocabulary
WORDS = ["the", "Paris", "naïve", "Straße", "日本語", "مرحبا", "नमस्ते", "👩‍👩‍👧‍👦", "e\u0301", "12345", "3.14", "don't", "x_y", "http://a.b/c?d=1", "<b>", "{}", "[INST]", "</s>",
         "<|im_", "im_end|>", "<think>", "\\n", "\"", "'", "%s", "\u200b", "\ufeff", "𝔘", "\u00a0", "…"]
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\t", "   ", " \n ", "\r\n", "\u3000"]


def text_of(draw):
    kind = draw.random()
    if kind < 0.08:
        return ""
    if kind < 0.14:
        return draw.choice(SPACES) * draw.randrange(1, 5)
    words = draw.randrange(200, 400) if kind > 0.97 else draw.randrange(1, 25)
    parts = []
    for _ in range(words):
        parts.append(draw.choice(CONTROL) if draw.random() < 0.01 else draw.choice(WORDS))
        parts.append(draw.choice(SPACES) if draw.random() < 0.9 else "")
    text = "".join(parts)
    return text if draw.random() < 0.3 else text.strip()


def chat_of(draw):
    messages = [{"role": "system", "content": text_of(draw)}] if draw.random() < 0.5 else []
    for turn in range(draw.randrange(1, 7)):
        messages += [{"role": "assistant", "content": text_of(draw)}] if turn > 0 else []
        messages.append({"role": "user", "content": text_of(draw)})
    return messages


class Llama:
    """llama.cpp's server, in a thread of this process, for its template and its tokens."""

    def __init__(self):
        params = xllamacpp.CommonParams()
        params.model.path = MODEL
        params.n_ctx, params.n_parallel, params.warmup, params.cpuparams.n_threads = CONTEXT, 1, False, 1
        self.server = xllamacpp.Server(params)

    def ask(self, path, body):
        request = urllib.request.Request(self.server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def prompt(self, messages):
        return self.ask("/apply-template", {"messages": messages})["prompt"]

    def tokens(self, text):
        """As the server does it for a chat."""
        return self.ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]


class LlamaChatsTest(unittest.TestCase):
    def test_prompts_have_the_tokens_of_llama_cpp(self):
        llama = Llama()
        draw = random.Random(SEED)
        same, as_text = 0, 0
        with Server("--max-context", CONTEXT, model=MODEL) as server:
            def ask(path, body):
                status, _, text = server.ask("POST", path, body)
                self.assertEqual(status, 200, text)
                return json.loads(text)

            control = {llama.tokens(text)[0] for text in CONTROL}
            self.assertEqual(len(control), len(CONTROL))
            for number in range(CHATS):
                messages = chat_of(draw)
                with self.subTest(number=number, messages=messages):
                    prompt = llama.prompt(messages)
                    theirs = llama.tokens(prompt)
                    ours = ask("/tokenize", {"messages": messages})["tokens"]
                    if not any(text in message["content"] for message in messages for text in CONTROL):
                        self.assertEqual(ours, theirs, prompt)
                        same += 1
                        continue
                    # The same text, and of control tokens the template's own.
                    self.assertEqual(ask("/detokenize", {"tokens": ours})["prompt"], prompt)
                    plain = [message | {"content": "x"} for message in messages]
                    expected = [token for token in llama.tokens(llama.prompt(plain)) if token in control]
                    self.assertEqual([token for token in ours if token in control], expected)
                    as_text += 1
            self.assertEqual(same + as_text, CHATS)
            self.assertGreater(same, CHATS // 2)
            self.assertGreater(as_text, CHATS // 20)
            # The usage counts the tokens of /tokenize.
            messages = chat_of(draw)
            answer = ask("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
            self.assertEqual(answer["usage"]["prompt_tokens"], ask("/tokenize", {"messages": messages})["count"])
        print(f"{same} chats have llama.cpp's tokens; {as_text} have texts of control tokens, which are text")


if __name__ == "__main__":
    ended = unittest.main(exit=False)
    sys.stdout.flush()
    os._exit(not ended.result.wasSuccessful())  # llama.cpp's server has no end of its own
