"""1,000 streams at the same moment, for a minute, of which many are left at random: no token is lost or mixed up, nothing leaks, and
/health stays quick where the machine does nothing else. STREAMS and SECONDS in the environment change the size."""

import asyncio
import json
import multiprocessing
import os
import random
import time
import unittest
import urllib.request

from server_process import DEVICE, Server, raw_request

STREAMS, SECONDS = int(os.environ.get("STREAMS", "1000")), float(os.environ.get("SECONDS", "60"))
WARM_UP = SECONDS / 3
TOKENS = 40
GROWTH = 16 << 20 if DEVICE else 1 << 20  # bytes of resident memory; a GPU's driver takes some for each size of step that is captured
PROMPTS = [[i % 50 + 3, i // 50 + 3, 7, 8] for i in range(100)]
FIELDS = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def tokens_in(text):
    """Token ids of the whole events in a part of a stream, and whether it came to its end."""
    ids, done = [], False
    for line in text.split("\n"):
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: ") and line.endswith("}"):
            item = json.loads(line[len("data: "):])
            if "error" in item:
                raise AssertionError(item)
            ids += item["choices"][0]["token_ids"]
    return ids, done


def probe_health(url, stop, seconds):
    """Appends to the list `seconds` how long each answer of /health took. A process of its own: not queued behind the clients."""
    taken = []
    while not stop.is_set():
        begin = time.monotonic()
        with urllib.request.urlopen(url + "/health", timeout=60) as answer:
            answer.read()
        taken.append(time.monotonic() - begin)
        time.sleep(0.02)
    seconds.extend(taken)


class Load:
    def __init__(self, server, expected):
        self.server, self.expected = server, expected
        self.whole = self.left = self.open = self.most_open = 0
        self.stop = False

    async def one_stream(self, randomness):
        prompt = randomness.randrange(len(PROMPTS))
        leaves_after = randomness.choice([None, None, randomness.randrange(20_000)])  # bytes
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            writer.write(raw_request(FIELDS | {"prompt": PROMPTS[prompt], "stream": True}, Connection="close"))
            received = b""
            while part := await reader.read(1 << 16):
                received += part
                if leaves_after is not None and len(received) > leaves_after:
                    break
        finally:
            self.open -= 1
            writer.close()
        head, _, body = received.partition(b"\r\n\r\n")
        if head and not head.startswith(b"HTTP/1.1 200"):
            raise AssertionError(received[:500])
        # Chunks are whole events, so their lengths are lines of their own.
        ids, done = tokens_in(body.decode().replace("\r\n", "\n"))
        if ids != self.expected[prompt][: len(ids)]:
            raise AssertionError(f"prompt {prompt}: {ids}, expected {self.expected[prompt]}")
        if done:
            if len(ids) != TOKENS:
                raise AssertionError(f"a whole stream has {len(ids)} tokens")
            self.whole += 1
        elif leaves_after is None:
            raise AssertionError("a stream broke off")
        else:
            self.left += 1

    async def client(self, seed):
        randomness = random.Random(seed)
        while not self.stop:
            await self.one_stream(randomness)

    async def run(self, seconds):
        self.stop = False
        tasks = [asyncio.create_task(self.client(i)) for i in range(STREAMS)]
        await asyncio.sleep(seconds)
        self.stop = True
        await asyncio.gather(*tasks)


class StreamsTest(unittest.TestCase):
    def usage(self, server):
        """Resources that must not grow: descriptors, pages, and RSS in bytes."""
        server.wait_for("coppice_http_requests_active", 0)
        server.wait_for("coppice_samples_running", 0)
        pages = server.metric("coppice_kv_pages_used")
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
            rss = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))
        return self.descriptors(server), pages, rss

    def descriptors(self, server):
        """The fewest of ten seconds: the server closes a connection some time after its client has, that of the question before too."""
        fewest, end = None, time.monotonic() + 10
        while time.monotonic() < end:
            count = len(os.listdir(f"/proc/{server.process.pid}/fd"))
            fewest = count if fewest is None else min(fewest, count)
            time.sleep(0.05)
        return fewest

    def test_streams_that_come_and_go(self):
        idle = os.getloadavg()[0] < 0.5
        with Server("--max-running", 256, "--max-waiting", 2 * STREAMS, "--max-context", 64, "--threads", 1, *([] if DEVICE else ["--deterministic"])) as server:
            expected = [server.complete(prompt=prompt, **FIELDS)[1]["choices"][0]["token_ids"] for prompt in PROMPTS]
            load = Load(server, expected)
            asyncio.run(load.run(WARM_UP))
            before = self.usage(server)
            with multiprocessing.Manager() as manager:
                stop, health = multiprocessing.Event(), manager.list()
                probe = multiprocessing.Process(target=probe_health, args=(server.url, stop, health))
                probe.start()
                asyncio.run(load.run(SECONDS))
                stop.set()
                probe.join()
                health = sorted(health)
            after = self.usage(server)
        p99 = health[int(0.99 * (len(health) - 1))]
        print(f"{load.most_open} streams open, {load.whole} whole, {load.left} left; /health p99 {1e3 * p99:.1f} ms of {len(health)}; "
              f"descriptors {before[0]} to {after[0]}, pages {before[1]:.0f} to {after[1]:.0f}, RSS {(after[2] - before[2]) / 1024:+.0f} KiB")
        if idle:  # else the time says what others did
            self.assertLess(p99, 0.05)
        self.assertGreaterEqual(load.most_open, STREAMS * 9 // 10)
        self.assertGreater(load.whole, STREAMS)
        self.assertGreater(load.left, STREAMS // 10)
        self.assertLessEqual(after[0], before[0])
        self.assertLessEqual(after[1], before[1])
        self.assertLess(after[2] - before[2], GROWTH)


if __name__ == "__main__":
    unittest.main()
