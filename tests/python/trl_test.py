"""TRL's GRPOTrainer against `coppice serve --trainer`, by examples/trainers/trl_grpo.py: a tiny random Llama learns a synthetic task on the CPU,
and at each step the server's greedy text is that of transformers with the new weights."""

import logging
import os
import sys
import tempfile
import unittest

from long_packages import install_or_skip

from server_process import ROOT, Server


def site_packages(folder):
    """A path of the folder that ends as dill, by which `datasets` names what it caches, expects of packages; others are the program's own modules to it."""
    link = os.path.join(ROOT, "build", "trl", "site-packages")
    os.makedirs(os.path.dirname(link), exist_ok=True)
    if os.path.lexists(link):
        os.remove(link)
    os.symlink(folder, link)
    return link


sys.path.append(site_packages(install_or_skip("trl", __file__)))

sys.path.insert(0, os.path.join(ROOT, "examples", "trainers"))

import tiny_llama  # noqa: E402
import trl_grpo  # noqa: E402
from tiny_llama import greedy  # noqa: E402

STEPS = 20


class SmallBuckets(trl_grpo.CoppiceClient):
    """Each weight update takes several buckets."""

    buckets = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, bucket_bytes=64 << 10, **kwargs)

    def _send(self, update_info):
        SmallBuckets.buckets += 1
        super()._send(update_info)


def make_model(folder):
    model = tiny_llama.make_model(1)
    model.save_pretrained(folder)
    return model, tiny_llama.make_tokenizer()


class TrlTest(unittest.TestCase):
    def test_grpo_learns_and_the_server_has_each_steps_weights(self):
        logging.getLogger("trl").setLevel(logging.ERROR)
        with tempfile.TemporaryDirectory() as folder:
            model, tokenizer = make_model(folder)
            with Server("--trainer", "--dtype", "f32", model=folder) as server:
                seen = []  # by step: number of the update, greedy texts

                def reward(completion_ids, **_):
                    # Between the update of weights and the trainer's next step: both have the same.
                    texts, compared = [], 0
                    for prompt in tiny_llama.PROMPTS:
                        ids = tokenizer(prompt)["input_ids"]
                        status, answer = server.complete(prompt=ids, temperature=0, max_tokens=12, logprobs=0, return_token_ids=True)
                        self.assertEqual(status, 200, answer)
                        expected, logprobs, margins = greedy(model, ids, 12)
                        got = answer["choices"][0]["token_ids"]
                        certain = next((i for i, margin in enumerate(margins) if margin < 1e-4), len(margins))
                        self.assertEqual(got[:certain], expected[:certain], f"step {len(seen)}, prompt {ids}")
                        for a, b in zip(answer["choices"][0]["logprobs"]["token_logprobs"][:certain], logprobs):
                            self.assertAlmostEqual(a, b, delta=1e-4, msg=f"step {len(seen)}, prompt {ids}")  # a step changes them by 1e-2
                        compared += certain
                        texts.append(got)
                    self.assertGreater(compared, 24)
                    weights = server.ask("GET", "/server_info")
                    seen.append((weights[2], texts))
                    return tiny_llama.rewards_of(completion_ids)

                with tempfile.TemporaryDirectory() as output:
                    trainer = trl_grpo.train(model, tokenizer, server.url, tiny_llama.PROMPTS * 16, reward, steps=STEPS, output=output, client=SmallBuckets,
                                             seed=1)
                rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
                print("rewards", " ".join(f"{value:.2f}" for value in rewards))
                self.assertEqual(len(rewards), STEPS)
                self.assertEqual(len(seen), STEPS)
                self.assertGreater(sum(rewards[-3:]) / 3, sum(rewards[:3]) / 3 + 0.3)
                self.assertGreater(len({str(texts) for _, texts in seen}), STEPS // 4, "the weights have not changed")
                self.assertIn(f'"version":{STEPS},', seen[-1][0])
                self.assertGreater(SmallBuckets.buckets, 2 * STEPS)
                client = trainer.vllm_generation.vllm_client
                segment = os.path.join("/dev/shm", client.weights.segment.name)
                self.assertTrue(os.path.exists(segment))
                client.close_communicator()
                self.assertFalse(os.path.exists(segment))


if __name__ == "__main__":
    unittest.main()
