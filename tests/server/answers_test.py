"""Large answers and clients that do not read them: what they cost is bounded, and others do not wait for them."""

import json
import socket
import time
import unittest

from server_process import Server, raw_request, read_all

PROMPT = list(range(3, 203))
ECHO = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 20, "ignore_eos": True}
LONG = ECHO | {"prompt": [3 + i % 300 for i in range(1500)]}


def resident(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


class LargeAnswersTest(unittest.TestCase):
    def test_each_choice_repeats_the_prompt(self):
        with Server() as server:
            _, one = server.complete(**ECHO)
            _, many = server.complete(n=128, **ECHO)
            self.assertEqual(len(many["choices"]), 128)
            for i, choice in enumerate(many["choices"]):
                self.assertEqual(choice, one["choices"][0] | {"index": i})

    def test_what_would_be_too_large_is_refused(self):
        with Server("--max-choices", 2000, "--max-answer", "8MiB") as server:
            status, error = server.complete(n=2000, **ECHO)
            self.assertEqual((status, error["error"]["param"]), (400, "n"))
            self.assertIn("2000 choices with 400000 tokens of echoed prompts", error["error"]["message"])
            self.assertEqual(server.complete(n=2001)[0], 400)
            self.assertEqual(server.complete(n=8, **ECHO)[0], 200)

    def test_memory_does_not_grow_with_the_answer(self):
        with Server("--max-choices", 0, "--max-answer", 0) as server:
            server.complete(**LONG)
            before = resident(server)
            with server.connect() as connection:
                connection.sendall(raw_request(LONG | {"n": 1000}, Connection="close"))
                size, most = 0, 0
                while part := connection.recv(1 << 20):
                    size += len(part)
                    most = max(most, resident(server))
            self.assertGreater(size, 64 << 20)
            self.assertLess(most - before, 32 << 20)


class SlowReadersTest(unittest.TestCase):
    def test_unread_answers_have_a_bound(self):
        with Server("--null", "--max-unwritten", "4MiB", "--max-waiting", 8192) as server:  # so that all requests are taken in
            server.complete(**LONG)
            before = resident(server)
            slow = []
            try:
                for _ in range(40):  # 256 KiB each, beside what the sockets hold
                    connection = socket.socket()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    connection.connect(("127.0.0.1", server.port))
                    connection.sendall(raw_request(LONG | {"n": 128}))  # 4 MB
                    slow.append(connection)
                server.wait_for("coppice_http_requests_active", 0)
                end = time.monotonic() + 60
                ended = 10  # at least, and of the others the sockets hold more or less, as the system has time
                while server.logged().count("too far behind") < ended and time.monotonic() < end:
                    time.sleep(0.1)
                self.assertGreaterEqual(server.logged().count("too far behind"), ended)
                self.assertLess(resident(server) - before, 48 << 20)
                begin = time.monotonic()
                self.assertEqual(server.complete(max_tokens=1)[0], 200)
                self.assertLess(time.monotonic() - begin, 5)
            finally:
                for connection in slow:
                    connection.close()

    def test_an_unread_stream_ends_with_its_samples(self):
        with Server("--null", "--null-step", 3, "--max-running", 64) as server:
            before = server.metric("coppice_generated_tokens_total")
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(("127.0.0.1", server.port))
                connection.sendall(raw_request({"prompt": [1], "max_tokens": 1500, "n": 32, "ignore_eos": True, "stream": True, "logprobs": 20}))
                deadline = time.monotonic() + 60
                while "too far behind" not in server.logged() and time.monotonic() < deadline:
                    time.sleep(0.05)
                self.assertIn("too far behind", server.logged())
                server.wait_for("coppice_samples_running", 0, seconds=30)
                self.assertLess(server.metric("coppice_generated_tokens_total") - before, 32 * 1500)
                self.assertIn(b"data: ", read_all(connection))


if __name__ == "__main__":
    unittest.main()
