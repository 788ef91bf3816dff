"""coppice_llm.ray_router as Ray Serve loads it, with replicas that are names: the replicas of a prompt that all requests have. No cluster."""

import asyncio
import collections
import math
import os
import sys
import types
import unittest

from long_packages import install_or_skip

sys.path.insert(0, install_or_skip("ray", __file__))
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

from ray.serve.config import RequestRouterConfig  # noqa: E402

BOUND, AT_ONCE = 1.25, 24


def replica(name):
    return types.SimpleNamespace(replica_id=types.SimpleNamespace(unique_id=name))


def pending(request, name):
    return types.SimpleNamespace(metadata=types.SimpleNamespace(internal_request_id=request, multiplexed_model_id=name),
                                 routing_context=types.SimpleNamespace(should_backoff=False), future=asyncio.get_running_loop().create_future())


class PrefixRouterTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        config = RequestRouterConfig(request_router_class="coppice_llm.ray_router.PrefixRouter", request_router_kwargs={"bound": BOUND})
        config._serialize_request_router_cls()  # as a deployment's options are sent to those that route  # pylint: disable=protected-access
        router = config.get_request_router_class()
        self.router = object.__new__(router)  # what Ray's own constructor needs is a cluster
        self.router.initialize_state(**config.request_router_kwargs)
        self.replicas = [replica("a"), replica("b")]

    async def choose(self, asked):
        ranks = await self.router.choose_replicas(self.replicas, asked)
        self.assertEqual(sorted(chosen.replica_id.unique_id for rank in ranks for chosen in rank), ["a", "b"])
        self.assertTrue(asked.routing_context.should_backoff)
        return ranks[0][0].replica_id

    async def test_a_prompt_that_all_ask_for(self):
        home = (await self.choose(pending("first", "hot"))).unique_id
        self.router.on_request_completed(replica(home).replica_id, "first")
        sent = {}
        for i in range(AT_ONCE):
            asked = pending(str(i), "hot")
            sent[str(i)] = await self.choose(asked)
            if i % 2:  # others are on their way
                self.router.on_request_routed(asked, sent[str(i)], None)
        counts = collections.Counter(chosen.unique_id for chosen in sent.values())
        self.assertEqual(counts[home], math.ceil(BOUND * AT_ONCE / 2), counts)
        for request, chosen in sent.items():
            self.router.on_request_completed(chosen, request)
        self.assertEqual((await self.choose(pending("last", "hot"))).unique_id, home)

    async def test_a_request_that_is_given_up_or_tried_again_counts_once(self):
        home = await self.choose(pending("1", "hot"))
        asked = pending("2", "hot")
        for _ in range(5):  # no replica takes it
            self.assertEqual(await self.choose(asked), home)
        asked.future.cancel()
        await asyncio.sleep(0)
        self.router.on_request_completed(home, "1")
        for request in ("3", "4"):  # as if there had been none before
            self.assertEqual(await self.choose(pending(request, "hot")), home)
        self.assertNotEqual(await self.choose(pending("5", "hot")), home)


if __name__ == "__main__":
    unittest.main()
