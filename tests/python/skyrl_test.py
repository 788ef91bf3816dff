"""examples/trainers/skyrl_coppice.py: SkyRL's client and its way of sending weights, as its trainer calls them, over a real server on the CPU."""

import asyncio
import os
import sys
import tempfile
import typing
import unittest

from long_packages import install_or_skip
from server_process import ROOT, Server

sys.path[1:1] = [os.path.join(ROOT, "examples", "trainers"), install_or_skip("skyrl", __file__)]

import typing_extensions  # noqa: E402

if sys.version_info < (3, 12):  # where SkyRL 0.3 cannot be imported else: pydantic takes the other one there
    typing.TypedDict = typing_extensions.TypedDict

import skyrl_coppice  # noqa: E402
from skyrl.backends.skyrl_train import weight_sync  # noqa: E402
from skyrl.backends.skyrl_train.inference_servers import remote_inference_client  # noqa: E402
from skyrl.backends.skyrl_train.weight_sync import WeightChunk  # noqa: E402
from tiny_llama import greedy, make_model  # noqa: E402

PROMPTS = [[2, 3, 4, 5, 6, 7, 8, 9], [2, 3, 4, 5, 20, 21]]
SPREAD = {"initializer_range": 0.2}  # no two tokens are about as probable
SAMPLING = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_tokens": 12, "logprobs": 0, "skip_special_tokens": True,
            "include_stop_str_in_output": True, "stop": None, "ignore_eos": True}


class Words:
    """A tokenizer as far as the client needs one."""

    def batch_decode(self, token_ids):
        return [" ".join(map(str, ids)) for ids in token_ids]


def chunks(model):
    """As SkyRL's extractors give them: several weights together, others alone."""
    named = list(model.state_dict().items())
    for begin in range(0, len(named), 3):
        names, tensors = zip(*named[begin : begin + 3])
        yield WeightChunk(names=list(names), dtypes=[str(tensor.dtype) for tensor in tensors], shapes=[list(tensor.shape) for tensor in tensors],
                          tensors=list(tensors))


class SkyrlTest(unittest.TestCase):
    def test_a_trainers_steps(self):
        skyrl_coppice.use_coppice()
        self.assertIs(weight_sync.get_transfer_strategy_cls("nccl", True), skyrl_coppice.CoppiceTransferStrategy)
        self.assertIs(remote_inference_client.RemoteInferenceClient, skyrl_coppice.CoppiceClient)
        with tempfile.TemporaryDirectory() as folder:
            make_model(1, **SPREAD).save_pretrained(folder)
            with Server("--trainer", "--dtype", "f32", "--logprobs-mode", "processed_logprobs", model=folder) as server:
                asyncio.run(self.run_steps(server))

    async def run_steps(self, server):
        client = remote_inference_client.RemoteInferenceClient(proxy_url=server.url, server_urls=[server.url], data_parallel_size=1, model_name="model",
                                                               tokenizer=Words())

        async def check(seed):
            model = make_model(seed, **SPREAD)
            output = await client.generate({"prompt_token_ids": PROMPTS, "sampling_params": dict(SAMPLING), "session_ids": ["a", "b"]})
            for i, prompt in enumerate(PROMPTS):
                tokens, logprobs, _ = greedy(model, prompt, 12)
                self.assertEqual(output["response_ids"][i], tokens)
                for ours, theirs in zip(output["response_logprobs"][i], logprobs, strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4)
            self.assertEqual(output["stop_reasons"], ["length", "length"])

        try:
            self.assertEqual(await client.get_world_size(), (1, 1))
            strategy = weight_sync.get_transfer_strategy_cls("nccl", True)
            init_info = strategy.create_init_info(None, 1)
            await client.init_weight_update_communicator(init_info)
            sender = strategy.create_sender(init_info, client)
            sender.weights.bucket_bytes = 64 << 10
            await check(1)
            # Trainer and server share memory: it sleeps, and wakes with other weights.
            await client.sleep(level=2)
            await client.wake_up(tags=["weights"])
            await sender.send_chunks(chunks(make_model(2, **SPREAD)))
            await client.wake_up(tags=["kv_cache"])
            await client.reset_prefix_cache()
            await check(2)
            # Asynchronous: what runs is frozen, and goes on.
            running = asyncio.create_task(client.generate({"prompt_token_ids": PROMPTS, "sampling_params": SAMPLING | {"max_tokens": 200}}))
            await asyncio.sleep(0.02)
            await client.pause_generation()
            await client.sleep_for_weight_sync()
            await sender.send_chunks(chunks(make_model(3, **SPREAD)))
            await client.wake_for_weight_sync(["weights"])
            await client.resume_generation()
            self.assertEqual([len(ids) for ids in (await running)["response_ids"]], [200, 200])
            await check(3)
            _, _, version = server.ask("GET", "/get_weight_version")
            self.assertEqual(version, '{"weight_version":"2"}')
            sample = await client.sample({"json": {"prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPTS[0]}]}, "num_samples": 2,
                                                   "sampling_params": {"temperature": 1.0, "max_tokens": 5, "seed": 1}, "prompt_logprobs": True}})
            self.assertEqual([len(sequence["logprobs"]) == len(sequence["tokens"]) for sequence in sample["sequences"]], [True, True])
            self.assertEqual(len(sample["prompt_logprobs"]), len(PROMPTS[0]))
            with self.assertRaisesRegex(NotImplementedError, "is_checkpoint_format"):
                await client.start_weight_update(is_checkpoint_format=False)
        finally:
            sender.teardown()
            await client.teardown()
        self.assertFalse([name for name in os.listdir("/dev/shm") if sender.weights.segment and name == sender.weights.segment.name])


if __name__ == "__main__":
    unittest.main()
