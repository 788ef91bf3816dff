"""SkyRL with `coppice serve --trainer` in the place of vLLM: a client and a way of sending weights, for SkyRL 0.3; SkyRL itself stays as it is.

    coppice serve --trainer --model MODEL --logprobs-mode processed_logprobs --port 8000

use_coppice(), called before SkyRL's trainer and its workers are made (in each process of them: an import of this module with SKYRL_COPPICE=1 in the
environment does it), lets the trainer send weights by CoppiceTransferStrategy, through shared memory: trainer and servers run on one machine. Rollouts
go to servers that were started elsewhere (generator.inference_engine.external_server_urls and external_proxy_url; with one server both are its URL).
Not here: LoRA adapters, images, the experts' routing, deltas. docs/trainers.md describes the server's side.
"""

import asyncio
import os
import sys
from dataclasses import dataclass, field

import torch
from shared_weights import BUCKET_BYTES, SharedWeights
from skyrl.backends.skyrl_train.inference_servers import remote_inference_client
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.backends.skyrl_train.weight_sync import WeightSyncInitInfo, WeightTransferSender, WeightTransferStrategy


@dataclass
class CoppiceClient(RemoteInferenceClient):
    """Names what the server does instead of what only vLLM's workers can. `api_key`: of role trainer, where the server has keys; the default is the
    environment's COPPICE_API_KEY."""

    api_key: str = ""
    updates: int = field(default=0, repr=False)  # of weights, by this object

    async def _get_session(self):
        session = await super()._get_session()
        if key := self.api_key or os.environ.get("COPPICE_API_KEY"):
            session.headers["Authorization"] = f"Bearer {key}"
        return session

    async def _call_server(self, server_url, endpoint, json=None, method="POST", params=None):
        """Answers that come in chunks have no length, and bodies all the same."""
        session = await self._get_session()
        async with session.request(method, server_url + endpoint, json=json, params=params) as answer:
            body = await answer.json(content_type=None)
            remote_inference_client.raise_for_status(answer, body)
            return server_url, {"status": answer.status, "body": body}

    async def sleep_for_weight_sync(self, offload_kv=True):
        """Nothing: frozen requests keep their KV, and an update needs no memory beside the weights and a bucket."""
        return {}

    async def wake_for_weight_sync(self, tags):
        """As sleep_for_weight_sync."""
        return {}

    async def start_weight_update(self, is_checkpoint_format=True):
        if not is_checkpoint_format:
            raise NotImplementedError("weights have the names and shapes of the model's folder (is_checkpoint_format=True)")
        return await self._call_all_servers("/start_weight_update", {})

    async def finish_weight_update(self):
        """One version, with its number as the name."""
        self.updates += 1
        return await self._call_all_servers("/finish_weight_update", {"weight_version": str(self.updates)})


@dataclass
class SharedMemoryInitInfo(WeightSyncInitInfo):
    """There is no group to join."""

    def for_servers(self, world_size_per_server, num_servers, dp_size=1):
        return [self] * num_servers

    def to_api_payload(self):
        return {"transport": "shared_memory"}


class SharedMemorySender(WeightTransferSender):
    """The first rank copies each chunk into shared memory; all ranks take part in making them."""

    def __init__(self, client, bucket_bytes=BUCKET_BYTES):
        self.client = client
        self.loop = None
        self.weights = SharedWeights(self._send, bucket_bytes)

    def _send(self, update_info):  # on a thread, so that the loop goes on
        asyncio.run_coroutine_threadsafe(self.client.update_named_weights(update_info), self.loop).result()

    async def send_chunks(self, chunks, weight_metadata=None, **kwargs):
        is_alone = not torch.distributed.is_initialized()
        if is_alone or torch.distributed.get_rank() == 0:
            self.loop = asyncio.get_running_loop()
            await self.client.start_weight_update()
            await asyncio.to_thread(self.weights.add_all, (named for chunk in chunks for named in zip(chunk.names, chunk.tensors)))
            await self.client.finish_weight_update()
        else:
            for _ in chunks:
                pass
        if not is_alone:
            torch.distributed.barrier()

    def teardown(self):
        self.weights.close()


class CoppiceTransferStrategy(WeightTransferStrategy):
    @staticmethod
    def create_init_info(ie_cfg, inference_world_size=None, base_model_path=None):
        return SharedMemoryInitInfo(override_existing_receiver=True)

    @staticmethod
    def get_vllm_transfer_engine():
        raise NotImplementedError("the servers have no workers of vLLM's")

    @staticmethod
    def create_sender(init_info, inference_client):
        return SharedMemorySender(inference_client)


def use_coppice():
    """SkyRL of this process makes CoppiceClient and CoppiceTransferStrategy from now on."""
    ours = {
        "RemoteInferenceClient": CoppiceClient,
        "get_transfer_strategy_cls": lambda weight_sync_backend, colocate_all: CoppiceTransferStrategy,
        "get_transfer_strategy": lambda weight_sync_backend, colocate_all: "shared_memory",
    }
    for name, module in list(sys.modules.items()):  # also those that have taken them from where they are defined
        if name.startswith("skyrl."):
            for attribute in ours.keys() & vars(module).keys():
                setattr(module, attribute, ours[attribute])


if os.environ.get("SKYRL_COPPICE") == "1":
    use_coppice()
