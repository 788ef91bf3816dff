"""examples/trainers/verl_coppice.py: verl's registries give its replica and rollout classes by name, and they do what verl's trainer asks of them, over a
real server and Ray on the CPU: rollouts, weights in buckets, sleep, aborts."""

import asyncio
import os
import sys
import tempfile
import time
import types
import unittest

from long_packages import install_or_skip
from server_process import ROOT

PACKAGES = install_or_skip("verl", __file__)
TRAINERS = os.path.join(ROOT, "examples", "trainers")
sys.path[1:1] = [TRAINERS, PACKAGES]
# Ray's workers are other processes.
os.environ["PYTHONPATH"] = os.pathsep.join([TRAINERS, os.path.dirname(os.path.abspath(__file__)), PACKAGES])
os.environ["VERL_USE_EXTERNAL_MODULES"] = "verl_coppice"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # noqa: E402
from tiny_llama import greedy, make_model  # noqa: E402
from verl.workers.config import CheckpointEngineConfig, HFModelConfig, RolloutConfig  # noqa: E402
from verl.workers.rollout.base import get_rollout_class  # noqa: E402
from verl.workers.rollout.replica import get_rollout_replica_class  # noqa: E402

PROMPT = [2, 3, 4, 5, 6, 7, 8, 9]
SPREAD = {"initializer_range": 0.2}  # no two tokens are about as probable


class Trainer:
    """A worker of verl's: it has the rollout's adapter beside its model."""

    def __init__(self, rollout_config, model_config):
        os.environ.update(RANK="0", RAY_LOCAL_WORLD_SIZE="1")
        self.rollout = get_rollout_class("coppice", "async")(config=rollout_config, model_config=model_config, device_mesh=None)

    def update(self, seed, step):
        """The order of verl's ActorRolloutRefWorker.update_weights."""

        async def run():
            await self.rollout.resume(tags=["weights"])
            await self.rollout.update_weights(iter(make_model(seed, **SPREAD).state_dict().items()), peft_config=None, base_sync_done=True, global_steps=step)
            await self.rollout.resume(tags=["kv_cache"])

        asyncio.run(run())

    def release(self):
        asyncio.run(self.rollout.release())


class VerlTest(unittest.TestCase):
    def test_a_replica_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            make_model(1, **SPREAD).save_pretrained(folder)
            engine_kwargs = {"coppice": {"program": os.environ["COPPICE"], "threads": 2, "kv_cache": "64MiB"}}
            config = RolloutConfig(name="coppice", dtype="float32", tensor_model_parallel_size=1, prompt_length=32, response_length=96, max_model_len=128,
                                   max_num_seqs=8, max_num_batched_tokens=64, engine_kwargs=engine_kwargs,
                                   checkpoint_engine=CheckpointEngineConfig(update_weights_bucket_megabytes=0))
            model = HFModelConfig(path=folder, load_tokenizer=False, override_config={"attn_implementation": "eager"})
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
            try:
                asyncio.run(self.run_replica(config, model))
            finally:
                ray.shutdown()

    async def run_replica(self, config, model):
        trainer = ray.remote(Trainer).options(num_cpus=0).remote(config, model)
        replica = get_rollout_replica_class("coppice")(0, config, model, gpus_per_node=1)
        await replica.init_hybrid(types.SimpleNamespace(workers=[trainer]))
        server = replica.server_handle

        async def ask(request_id="r", **params):
            params = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "ignore_eos": True, "max_tokens": 12} | params
            return await server.generate.remote(prompt_ids=PROMPT, sampling_params=params, request_id=request_id)

        async def check(seed, step):
            output = await ask()
            tokens, logprobs, _ = greedy(make_model(seed, **SPREAD), PROMPT, 12)
            self.assertEqual(output.token_ids, tokens)
            for ours, theirs in zip(output.log_probs, logprobs, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-4)
            self.assertEqual(output.stop_reason, "completed")
            self.assertEqual(output.extra_fields["global_steps"], step)

        await check(1, None)
        for step, seed in ((1, 2), (2, 3)):
            await trainer.release.remote()
            await trainer.update.remote(seed, step)
            await check(seed, step)
        # Rollouts that are cut off, and what comes meanwhile waits.
        await server.ask.remote("/pause?mode=keep")
        long = [asyncio.create_task(ask(f"long {i}", max_tokens=90)) for i in range(4)]
        deadline = time.monotonic() + 30
        while not (await replica.abort_request("long 3"))["aborted"]:  # until it has come to the server
            self.assertLess(time.monotonic(), deadline)
            await asyncio.sleep(0.01)
        self.assertEqual((await long[3]).stop_reason, "aborted")
        while (await server.abort_request.remote("long 0"))["aborted"] is False:
            self.assertLess(time.monotonic(), deadline)
        await replica.abort_all_requests()
        self.assertEqual({output.stop_reason for output in await asyncio.gather(*long)}, {"aborted"})
        waits = asyncio.create_task(ask())
        await asyncio.sleep(0.2)
        self.assertFalse(waits.done())
        await replica.resume_generation()
        self.assertEqual((await waits).token_ids, greedy(make_model(3, **SPREAD), PROMPT, 12)[0])
        await replica.abort_all_requests(reject_request=True)
        self.assertEqual((await ask()).stop_reason, "aborted")
        await replica.resume_generation()
        await check(3, 2)
        await replica.sleep()
        await trainer.update.remote(2, 3)
        await check(2, 3)
        await server.shutdown.remote()


if __name__ == "__main__":
    unittest.main()
