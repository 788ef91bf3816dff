"""verl with Coppice as its rollout: a replica and a rollout class under the name "coppice", by verl 0.9's registries; verl itself stays as it is.

    export VERL_USE_EXTERNAL_MODULES=verl_coppice PYTHONPATH=FOLDER_OF_THIS_FILE
    python -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=coppice \\
        +actor_rollout_ref.rollout.engine_kwargs.coppice.device=cuda:0 ...

A replica is one process `coppice serve --trainer`, which the actor CoppiceServer starts, on the machine of the replica's first worker; ranks are devices
of that process (device: cuda:0,cuda:1). Entries of engine_kwargs.coppice are options of `coppice serve`; `program` names another program than `coppice`.
Prompts and outputs go through the actor as token ids; weights come from the worker on the same machine by shared memory. The server listens on the
loopback address alone, so chats of agent loops over HTTP reach it from its own machine. Not here: LoRA adapters, images, disaggregated prefill, deltas.
docs/trainers.md describes the server's side.
"""

import asyncio
import logging
import os
import re
import subprocess

import aiohttp
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from shared_weights import SharedWeights
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "coppice"
LISTENING = re.compile(r"listening on (http://\S+)")
STOP_REASONS = {"stop": "completed", "length": "completed", "abort": "aborted"}

logger = logging.getLogger(__name__)


def actor_name(replica_rank, suffix=""):
    return f"{NAME}_server_{replica_rank}_0{suffix}"


def command_of(config, model_path):
    """The command line that a rollout's config asks for."""
    options = dict((config.engine_kwargs or {}).get(NAME) or {})
    program = options.pop("program", "coppice")
    settings = {
        "model": model_path,
        "port": 0,
        "dtype": {"bfloat16": "bf16", "float32": "f32", "float16": "f16"}[config.dtype],
        "max-context": config.max_model_len or config.prompt_length + config.response_length,
        "logprobs-mode": config.logprobs_mode or "processed_logprobs",
        "max-running": config.max_num_seqs,
        "max-batch-tokens": config.max_num_batched_tokens,
    } | {key.replace("_", "-"): value for key, value in options.items()}
    if config.full_determinism:
        settings.setdefault("deterministic", True)
    command = [program, "serve", "--trainer"]
    for key, value in settings.items():
        if value is True:
            command.append(f"--{key}")
        elif value is not False and value is not None:
            command += [f"--{key}", str(value)]
    return command


class CoppiceServer:
    """The actor of a replica: its server process, and the methods that verl calls. In one event loop."""

    def __init__(self, config, model_path, rollout_mode, replica_rank):
        self.config = config
        self.rollout_mode = rollout_mode
        self.replica_rank = replica_rank
        self.command = command_of(config, model_path)
        self.global_steps = None
        self.rejecting = False
        self.process = None
        self.url = None
        self.session = None

    async def launch_server(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        line = await asyncio.to_thread(self.process.stdout.readline)
        found = LISTENING.search(line)
        if not found:
            raise RuntimeError(f"{' '.join(self.command)} ended with {self.process.wait()} and said {line!r}")
        self.url = found[1]
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0))

    async def shutdown(self):
        if self.session is not None:
            await self.session.close()
        if self.process is not None:
            self.process.terminate()
            await asyncio.to_thread(self.process.wait)

    async def ask(self, path, body=None):
        async with self.session.post(self.url + path, json=body if body is not None else {}) as response:
            answer = await response.json()
            if response.status >= 400:
                raise RuntimeError(f"{path} answered {response.status}: {answer['error']['message']}")
            return answer

    def get_server_address(self):
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def get_rollout_config(self):
        return self.config

    # ---- rollouts

    async def generate(self, prompt_ids, sampling_params, request_id, image_data=None, video_data=None, audio_data=None, mm_processor_kwargs=None, priority=0):
        """Token ids in, a TokenOutput out. While weights change, requests wait in the server, or end at once where abort_all_requests said so."""
        if image_data or video_data or audio_data:
            raise NotImplementedError("the server has no models that see images or hear")
        extra_fields = {"global_steps": self.global_steps}
        if self.rejecting:
            return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields=extra_fields)
        prompt_ids = [int(token) for token in prompt_ids]
        params = dict(sampling_params)
        wants_logprobs = params.pop("logprobs", False)
        limit = params.pop("max_new_tokens", None) or self.config.response_length
        limit = min(limit, self.config.prompt_length + self.config.response_length - len(prompt_ids))
        params["max_tokens"] = max(1, params.pop("max_tokens", None) or limit)
        params.setdefault("repetition_penalty", self.config.repetition_penalty)
        params.setdefault("ignore_eos", self.config.ignore_eos)
        if self.config.full_determinism:
            params.setdefault("seed", self.replica_rank + self.config.seed)
        if wants_logprobs:
            params["logprobs"] = 0
        body = {"token_ids": prompt_ids, "request_id": request_id, "priority": priority, "sampling_params": params}
        answer = await self.ask("/inference/v1/generate", body)
        choice = answer["choices"][0]
        extra_fields["num_cached_tokens"] = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        extra_fields["weight_versions"] = choice["weight_versions"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]] if wants_logprobs else None
        reason = STOP_REASONS.get(choice["finish_reason"], choice["finish_reason"])
        return TokenOutput(token_ids=choice["token_ids"], log_probs=logprobs, stop_reason=reason, extra_fields=extra_fields)

    async def abort_request(self, request_id, reset_prefix_cache=True):
        aborted = (await self.ask("/abort_requests", {"request_ids": [request_id]}))["num_aborted"] > 0
        if reset_prefix_cache:
            await self.clear_kv_cache()
        return {"aborted": aborted, "request_id": request_id}

    async def abort_all_requests(self, reset_prefix_cache=True, reject_request=False):
        """Ends what runs, and holds what comes until resume_generation."""
        self.rejecting = reject_request
        aborted = (await self.ask("/abort_requests"))["num_aborted"]
        await self.ask(f"/pause?mode=abort&clear_cache={str(reset_prefix_cache).lower()}")
        return {"aborted_count": aborted, "request_ids": []}

    async def resume_generation(self):
        await self.ask("/resume")
        self.rejecting = False

    async def wait_for_requests_to_drain(self):
        """Sleeping waits for what runs."""

    # ---- memory and weights

    async def sleep(self):
        """Gives back KV and, where a trainer brings weights before it resumes, those too."""
        if self.config.free_cache_engine and self.rollout_mode != RolloutMode.STANDALONE:
            await self.ask(f"/sleep?level={2 if self.rollout_mode == RolloutMode.HYBRID else 1}&mode=wait")

    async def wake_up(self, tags=None):
        if self.rollout_mode != RolloutMode.STANDALONE:
            await self.ask("/wake_up", {"tags": list(tags)} if tags else {})

    async def release_kv_cache(self):
        """Nothing: an update drops what is cached, and needs no memory beside the weights and a bucket."""

    async def resume_kv_cache(self):
        """As release_kv_cache."""

    async def clear_kv_cache(self):
        await self.ask("/reset_prefix_cache")

    async def set_global_steps(self, global_steps):
        self.global_steps = global_steps

    async def start_profile(self, **kwargs):
        """There is no profiler to start."""

    async def stop_profile(self):
        """As start_profile."""


class CoppiceReplica(RolloutReplica):
    """A server on the machine of the replica's first worker."""

    async def launch_servers(self):
        if self.nnodes != 1:
            raise NotImplementedError(f"a replica over {self.nnodes} machines is asked for: the ranks of a server are devices of one machine")
        model = omega_conf_to_dataclass(self.model_config, dataclass_type=HFModelConfig)
        node = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        kind = "reward_" if self.is_reward_model else "teacher_" if self.is_teacher_model else ""
        server = ray.remote(CoppiceServer).options(
            name=f"{NAME}_server_{kind}{self.replica_rank}_0{self.name_suffix}" if kind else actor_name(self.replica_rank, self.name_suffix),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            max_concurrency=self.max_concurrency,
            num_cpus=0,
        ).remote(self.config, model.local_path, self.rollout_mode, self.replica_rank)
        await server.launch_server.remote()
        self.servers = [server]
        self._server_handle = server
        host, port = await server.get_server_address.remote()
        self._server_address = f"{host}:{port}"

    async def abort_request(self, request_id):
        return await self.servers[0].abort_request.remote(request_id)


class ServerAdapter(BaseRollout):
    """In each worker: the first one of a replica notifies its server when memory and weights come and go."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        ranks = self.config.tensor_model_parallel_size * self.config.data_parallel_size * self.config.pipeline_model_parallel_size
        self.replica_rank = rank // ranks if replica_rank == -1 else replica_rank
        self.is_leader_rank = rank % ranks == 0
        self.server_handle = None

    def _server(self):
        if self.server_handle is None:
            self.server_handle = ray.get_actor(actor_name(self.replica_rank))  # it is launched after the workers
        return self.server_handle

    async def resume(self, tags):
        if self.is_leader_rank and self.config.free_cache_engine:
            await self._server().wake_up.remote(tags=tags)

    async def release(self):
        if self.is_leader_rank and self.config.free_cache_engine:
            await self._server().sleep.remote()

    @torch.no_grad()
    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **kwargs):
        """`weights`: (name, tensor), also of an asynchronous generator. All ranks take part in making them, the leader sends them."""
        if wire_format != "named_tensors":
            raise NotImplementedError(f"wire_format is {wire_format!r}, expected named_tensors")
        if kwargs.get("peft_config") is not None:
            raise NotImplementedError("LoRA adapters are not served: set model.lora.merge=True, which sends merged weights")
        if not self.is_leader_rank:
            async for _ in _each(weights):
                pass
            return
        server = self._server()
        loop = asyncio.get_running_loop()

        def send(update_info):  # on a thread, so that the loop goes on
            asyncio.run_coroutine_threadsafe(_ask(server, "/update_weights", {"update_info": update_info}), loop).result()

        shared = SharedWeights(send, self.config.checkpoint_engine.update_weights_bucket_megabytes << 20)
        version = None if global_steps is None else str(global_steps)
        try:
            await _ask(server, "/start_weight_update", {"mode": "wait"})
            async for name, tensor in _each(weights):
                await asyncio.to_thread(shared.add, name, tensor)
            await asyncio.to_thread(shared.flush)
            await _ask(server, "/finish_weight_update", {"weight_version": version})
        finally:
            shared.close()
        if global_steps is not None:
            await server.set_global_steps.remote(global_steps)


async def _ask(server, path, body):
    return await server.ask.remote(path, body)


async def _each(items):
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


RolloutReplicaRegistry.register(NAME, lambda: CoppiceReplica)
_ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.ServerAdapter"
