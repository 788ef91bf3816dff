"""examples/python/ray_serve.py on a Ray cluster of this machine: two replicas, OpenAI's routes through them, prompts that begin alike on one."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from ray_cluster import cluster
from program import ROOT, default_model_or_skip
from server_process import free_port

GROUPS, TURNS = 12, 3


class RayServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = default_model_or_skip()
        cls.folder = tempfile.mkdtemp(prefix="cr-", dir="/tmp")  # short: it holds sockets, whose names have 107 bytes at most
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read().decode()

    def chat(self, group, turn, **more):
        system = f"You are guide {group}. " + " ".join(f"word{group * 100 + i}" for i in range(80))
        return self.ask("/v1/chat/completions", {"messages": [{"role": "system", "content": system}, {"role": "user", "content": f"Question {turn}?"}],
                                                 "max_tokens": 4, "temperature": 0} | more)

    def wait_until_served(self, process, log):
        deadline = time.monotonic() + 240
        while True:
            try:
                return self.ask("/v1/models")
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise AssertionError(log.read()) from None
                time.sleep(0.5)

    def test_two_replicas(self):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with cluster(self.folder, 2) as environment, tempfile.TemporaryFile("w+") as log:
            start = (f"import ray, sys; from ray import serve; sys.path.insert(0, {ROOT!r}); from examples.python.ray_serve import app; ray.init(); "
                     f"serve.start(http_options={{'host': '127.0.0.1', 'port': {port}}}); "
                     f"serve.run(app({{'model': {self.model!r}, 'replicas': '2', 'options': '--kv-cache 64MiB'}}), blocking=True)")
            environment["PYTHONPATH"] += os.pathsep + ROOT
            with subprocess.Popen([sys.executable, "-c", start], env=environment, stdout=log, stderr=log) as process:
                try:
                    self.assertIn("data", json.loads(self.wait_until_served(process, log)))
                    found = [[json.loads(self.chat(group, turn))["usage"]["prompt_tokens_details"]["cached_tokens"] for turn in range(TURNS)]
                             for group in range(GROUPS)]
                    print(f"\ntokens found in the cache, by group and turn: {found}")
                    self.assertGreater(sum(min(cached[1:]) > 100 for cached in found), GROUPS - 2, found)
                    self.assertEqual(sum(cached[0] == 0 for cached in found), 2, found)  # what each replica had first; later ones find the template's begin
                    streamed = self.chat(0, TURNS, stream=True)
                    self.assertTrue(streamed.endswith("data: [DONE]\n\n"), streamed)
                    with self.assertRaises(urllib.error.HTTPError) as refused:
                        self.chat(0, 0, temperature=-1)
                    self.assertEqual(refused.exception.code, 400)
                    self.assertIn("temperature", refused.exception.read().decode())
                finally:
                    process.terminate()


if __name__ == "__main__":
    unittest.main()
