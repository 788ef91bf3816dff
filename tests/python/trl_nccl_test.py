"""Unchanged TRL between two GPUs: GRPOTrainer with its own client and vLLM's Python files on one, `coppice serve --trainer` on the other, weights by NCCL at
each step. A tiny random Llama learns a synthetic task, and the server's greedy text is that of transformers with the new weights. Skips itself where
torch, TRL, vLLM or a second GPU is missing.

    COPPICE=build/cuda/coppice python3 tests/python/trl_nccl_test.py
"""

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import unittest

gpus = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ") if os.path.exists("/dev/nvidiactl") else 0
missing = [name for name in ("torch", "trl", "vllm") if importlib.util.find_spec(name) is None]
if gpus < 2 or missing:
    print(f"skipped: {gpus} GPUs; no {', '.join(missing) or 'second one'}")
    sys.exit(77)
os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # this process's; before torch looks

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [os.path.join(TESTS, "server"), os.path.join(TESTS, "cli"), os.path.join(os.path.dirname(TESTS), "examples", "trainers")]

import tiny_llama  # noqa: E402
import trl_grpo  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402

from server_process import Server, free_port  # noqa: E402

STEPS = 20
# The server computes in bf16, which moves these logits by so much; the model's are large.
MARGIN = 0.25
SHAPE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "initializer_range": 0.15}


class TrlNcclTest(unittest.TestCase):
    def test_grpo_learns_and_the_server_has_each_steps_weights(self):
        logging.getLogger("trl").setLevel(logging.ERROR)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as output:
            model, tokenizer = tiny_llama.make_model(1, **SHAPE), tiny_llama.make_tokenizer()
            model.save_pretrained(folder)
            with Server("--trainer", "--device", "cuda:0", "--deterministic", model=folder, environment={"CUDA_VISIBLE_DEVICES": "0"}) as server:
                compared, infos, texts = [], [], []

                def reward(completion_ids, **_):
                    # Between the update of weights and the trainer's next step: both have the same.
                    infos.append(server.ask("GET", "/server_info")[2])
                    certain_tokens = 0
                    for prompt in tiny_llama.PROMPTS:
                        ids = tokenizer(prompt)["input_ids"]
                        status, answer = server.complete(prompt=ids, temperature=0, max_tokens=12, ignore_eos=True, return_token_ids=True)
                        self.assertEqual(status, 200, answer)
                        expected, _, margins = tiny_llama.greedy(model, ids, 12)
                        certain = next((i for i, margin in enumerate(margins) if margin < MARGIN), len(margins))
                        got = answer["choices"][0]["token_ids"]
                        self.assertEqual(got[:certain], expected[:certain], f"step {len(infos)}, prompt {ids}")
                        certain_tokens += certain
                        texts.append(tuple(got))
                    compared.append(certain_tokens)
                    return tiny_llama.rewards_of(completion_ids)

                trainer = trl_grpo.train(model, tokenizer, server.url, tiny_llama.PROMPTS * 16, reward, STEPS, output, client=None,
                                         vllm_group_port=free_port(), seed=1, learning_rate=1e-3)
                client = trainer.vllm_generation.vllm_client
                self.assertIs(type(client), VLLMClient)
                rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
                print("rewards", " ".join(f"{value:.2f}" for value in rewards), "tokens compared", compared)
                self.assertEqual(len(infos), STEPS)
                self.assertIn(f'"version":{STEPS},', infos[-1])
                self.assertGreater(sum(compared), 4 * STEPS)
                self.assertGreater(len(set(texts)), STEPS, "the weights have not changed")
                self.assertGreater(sum(rewards[-3:]) / 3, sum(rewards[:3]) / 3 + 0.2)
                client.close_communicator()


if __name__ == "__main__":
    unittest.main()
