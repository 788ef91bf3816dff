"""examples/python/ray_serve.py on a Ray cluster of this machine: OpenAI's routes through two replicas, prompts that begin alike on one of them up to its
share of requests, and a replica that comes with load and goes without."""

import collections
import concurrent.futures
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from ray_cluster import cluster, processes
from program import ROOT, default_model_or_skip
from server_process import free_port

GROUPS, TURNS = 12, 3
AT_ONCE, BOUND = 24, 1.25
DEADLINE = 300  # seconds, for what Ray takes its time for


class RayServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = default_model_or_skip()
        cls.folder = tempfile.mkdtemp(prefix="cr-", dir="/tmp")  # short: it holds sockets, whose names have 107 bytes at most
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.kv_cache = (64 << 20) + os.getpid()  # by which servers of this test are known
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.environment = stack.enter_context(cluster(cls.folder, 2))

    def ask(self, path, body=None):
        """(the replica's name, the answer)"""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.headers["x-replica"], response.read().decode()

    def chat(self, group, turn, **more):
        system = f"You are guide {group}. " + " ".join(f"word{group * 100 + i}" for i in range(80))
        return self.ask("/v1/chat/completions", {"messages": [{"role": "system", "content": system}, {"role": "user", "content": f"Question {turn}?"}],
                                                 "max_tokens": 4, "temperature": 0} | more)

    @contextlib.contextmanager
    def served(self, **arguments):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = {"model": self.model, "options": f"--kv-cache {self.kv_cache}"} | arguments
        start = (f"import ray, sys; from ray import serve; sys.path.insert(0, {ROOT!r}); from examples.python.ray_serve import app; ray.init(); "
                 f"serve.start(http_options={{'host': '127.0.0.1', 'port': {port}}}); serve.run(app({arguments!r}), blocking=True)")
        with tempfile.TemporaryFile("w+") as log, subprocess.Popen([sys.executable, "-c", start], env=self.environment, stdout=log, stderr=log) as process:
            try:
                deadline = time.monotonic() + DEADLINE
                while True:
                    try:
                        self.assertIn("data", json.loads(self.ask("/v1/models")[1]))
                        break
                    except OSError:
                        if process.poll() is not None or time.monotonic() > deadline:
                            log.seek(0)
                            raise AssertionError(log.read()) from None
                        time.sleep(0.5)
                yield
            finally:
                process.terminate()
                process.wait(60)
                subprocess.run([sys.executable, "-c", "import ray; from ray import serve; ray.init(log_to_driver=False); serve.shutdown()"],
                               env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)

    def servers(self):
        """How many run, without the processes that they have forked."""
        parents = processes(lambda arguments: "serve" in arguments[1:2] and str(self.kv_cache) in arguments)
        return sum(parent not in parents for parent in parents.values())

    def wait_for(self, condition, what):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.2)

    def test_two_replicas(self):
        with self.served(replicas="2", bound=BOUND):
            self.wait_for(lambda: self.servers() == 2, "one replica runs")
            found = [[json.loads(self.chat(group, turn)[1])["usage"]["prompt_tokens_details"]["cached_tokens"] for turn in range(TURNS)]
                     for group in range(GROUPS)]
            print(f"\ntokens found in the cache, by group and turn: {found}")
            self.assertGreater(sum(min(cached[1:]) > 100 for cached in found), GROUPS - 2, found)
            self.assertEqual(sum(cached[0] == 0 for cached in found), 2, found)  # what each replica had first; later ones find the template's begin
            _, streamed = self.chat(0, TURNS, stream=True)
            self.assertTrue(streamed.endswith("data: [DONE]\n\n"), streamed)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.chat(0, 0, temperature=-1)
            self.assertEqual(refused.exception.code, 400)
            self.assertIn("temperature", refused.exception.read().decode())
            for prompt in (5, {"text": "a"}):  # none: the server's error
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    self.ask("/v1/completions", {"prompt": prompt})
                self.assertEqual(refused.exception.code, 400)
            # A prompt that all ask for at once: its replica has its share of them and no more, the other one the rest.
            home = self.chat(0, 0)[0]
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as clients:
                replicas = collections.Counter(clients.map(lambda turn: self.chat(0, turn, max_tokens=100, ignore_eos=True)[0], range(AT_ONCE)))
            print(f"{AT_ONCE} requests for one prompt at once: {replicas}")
            self.assertEqual(replicas[home], math.ceil(BOUND * AT_ONCE / 2), replicas)
            self.assertEqual(len(replicas), 2)
            self.assertEqual([self.chat(0, turn)[0] for turn in range(4)], [home] * 4)  # and is its home again

    def test_a_replica_comes_with_load_and_goes_without(self):
        with self.served(replicas="1-2", target=3, upscale_delay=1, downscale_delay=5):
            self.assertEqual(self.servers(), 1)
            seen, enough = set(), threading.Event()

            def keep_asking(client):
                turn = 0
                while not enough.is_set():
                    seen.add(self.chat(client, turn, max_tokens=32, ignore_eos=True)[0])
                    turn += 1

            with concurrent.futures.ThreadPoolExecutor(GROUPS) as clients:
                asking = [clients.submit(keep_asking, client) for client in range(GROUPS)]
                try:
                    self.wait_for(lambda: len(seen) == 2 or any(client.done() for client in asking), "one replica has all the load")
                finally:
                    enough.set()
                for client in asking:
                    client.result()
            self.assertEqual(self.servers(), 2)
            self.wait_for(lambda: self.servers() == 1, "two replicas and no load")
            self.assertIn("choices", json.loads(self.chat(0, 0)[1]))


if __name__ == "__main__":
    unittest.main()
