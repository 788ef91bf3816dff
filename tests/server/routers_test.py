"""vllm-router and sglang-router before two servers: models, chats and streams go through, prompts that begin alike go to one server while it has room,
and one server is enough. 130 MB of packages."""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from packages import install_or_skip
from server_process import Server, default_model_or_skip, free_port

PACKAGES = install_or_skip("routers", __file__)
GROUPS, TURNS = 8, 4


class Router:
    """A router on a free port, for a `with`."""

    def __init__(self, package, servers):
        self.url, self.log = f"http://127.0.0.1:{free_port()}", tempfile.TemporaryFile("w+")
        self.command = [sys.executable, "-m", f"{package}.launch_router", "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--prometheus-host",
                        "127.0.0.1", "--prometheus-port", str(free_port()), "--policy", "cache_aware", "--balance-abs-threshold", "2",
                        "--balance-rel-threshold", "1.1", "--cb-failure-threshold", "2", "--worker-urls", *(server.url for server in servers)]

    def __enter__(self):
        environment = {**os.environ, "PYTHONPATH": PACKAGES}
        self.process = subprocess.Popen(self.command, env=environment, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 120
        while True:
            try:
                self.ask("/health")
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.process.kill()
                    self.log.seek(0)
                    raise AssertionError(self.log.read()) from None
                time.sleep(0.2)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read().decode()


class RoutersTest(unittest.TestCase):
    def chat(self, router, group, turn, **more):
        text = " ".join(f"word{group * 100 + i}" for i in range(60)) + f", question {turn}?"  # routers look at the users' words
        return router.ask("/v1/chat/completions", {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4,
                                                   "temperature": 0} | more)

    def test_two_servers(self):
        model = default_model_or_skip()
        self.model = os.path.basename(model)
        for package in ("vllm_router", "sglang_router"):
            one, other = (Server("--threads", 1, model=model) for _ in range(2))
            with self.subTest(package), one, other, Router(package, (one, other)) as router:
                self.assertEqual([entry["id"] for entry in json.loads(router.ask("/v1/models"))["data"]], [self.model])
                found = [[json.loads(self.chat(router, group, turn))["usage"]["prompt_tokens_details"]["cached_tokens"] for turn in range(TURNS)]
                         for group in range(GROUPS)]
                for cached in found:
                    self.assertGreater(min(cached[1:]), 100, found)  # the group's prompt, where its first one went
                with concurrent.futures.ThreadPoolExecutor(GROUPS) as clients:  # more at once than one server is to have
                    list(clients.map(lambda group: self.chat(router, GROUPS + group, 0, max_tokens=32), range(GROUPS)))
                computed = [server.metric("coppice_prefill_tokens_total") for server in (one, other)]
                self.assertGreater(min(computed), 0, computed)
                streamed = self.chat(router, 0, TURNS, stream=True)
                self.assertTrue(streamed.endswith("data: [DONE]\n\n"), streamed)
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    self.chat(router, 0, 0, temperature=-1)
                self.assertEqual(refused.exception.code, 400)
                self.assertIn("temperature", refused.exception.read().decode())
                other.process.terminate()
                self.assertEqual(other.process.wait(60), 0)
                for group in range(GROUPS):
                    self.assertEqual(json.loads(self.chat(router, group, 9))["object"], "chat.completion")


if __name__ == "__main__":
    unittest.main()
