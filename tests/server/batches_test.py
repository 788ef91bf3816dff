"""/v1/files and /v1/batches over real connections: uploads in both framings and too large ones, content, kill -9, SIGTERM, keys."""

import hashlib
import http.client
import json
import os
import resource
import signal
import tempfile
import time
import unittest

from batch_client import TYPE, Client, form, requests
from server_process import TINY, Server, coppice, read_all, statuses


def rss_bytes(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


class BatchesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def test_large_files_pass_through_the_disk(self):
        data = os.urandom(1 << 20) * 96
        with Server("--files", self.folder, "--max-file", "100MiB") as server:
            client = Client(server)
            small = client.upload(b"{}")
            before = rss_bytes(server.process)
            name = client.upload(data)
            self.assertEqual(client.content(name), data)
            self.assertLess(rss_bytes(server.process) - before, 32 << 20)
            self.assertEqual(client.content(small), b"{}")
            status, headers, text = server.ask("HEAD", f"/v1/files/{name}/content")
            self.assertEqual((status, headers["content-length"], text), (200, str(len(data)), ""))
            # In chunks, as clients send what they do not know the length of.
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            body = form(b"chunked" * 100_000)
            connection.request("POST", "/v1/files", iter([body[:5], body[5:400_000], body[400_000:]]), TYPE, encode_chunked=True)
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertEqual(client.content(json.loads(answer.read())["id"]), b"chunked" * 100_000)
            # The connection serves on.
            connection.request("GET", "/health")
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()

    def test_what_is_too_large_or_not_allowed_is_reported_before_it_is_read(self):
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w", encoding="ascii") as file:
            file.write(f"alice {hashlib.sha256(b'a').hexdigest()}\n")
        with Server("--files", os.path.join(self.folder, "files"), "--max-file", "1MiB", "--api-keys", keys) as server:
            for key, length, expected in (("wrong", 100, 401), ("a", 2 << 20, 413)):
                head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: {TYPE['Content-Type']}\r\n"
                with server.connect() as connection:
                    connection.sendall((head + f"Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n").encode())
                    connection.shutdown(1)
                    self.assertEqual(statuses(read_all(connection)), [expected])
                with server.connect() as connection:  # chunked: known when it has come
                    connection.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"100000\r\n" + b"a" * (1 << 20) + b"\r\n" + b"100000\r\n")
                    connection.sendall(b"a" * (1 << 19))
                    self.assertEqual(statuses(connection.recv(4096)), [expected])
            client = Client(server, Authorization="Bearer a")
            self.assertEqual(client.ask("POST", "/v1/files", form(b"a" * ((1 << 20) + 1)), **TYPE)[0], 413)
            client.upload(b"a" * (1 << 20))
            self.assertEqual(client.ask("POST", "/v1/completions", {"prompt": [5] * 10, "user": "a" * (11 << 20)})[0], 413)
            left = [name for name in os.listdir(os.path.join(self.folder, "files")) if name.endswith(".data")]
            self.assertEqual(len(left), 1)

    def test_an_upload_that_breaks_off_leaves_nothing(self):
        with Server("--files", self.folder) as server:
            with server.connect() as connection:
                connection.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE['Content-Type']}\r\nContent-Length: 1000000\r\n\r\n".encode())
                connection.sendall(form(b"a" * 300_000)[:290_000])
            self.assertEqual(server.ask("GET", "/health")[0], 200)
        self.assertEqual(os.listdir(self.folder), ["lock"])

    def test_kill_9_and_restart(self):
        with Server("--files", self.folder, "--batch-active", 2) as server:
            client = Client(server)
            name = client.create(client.upload(requests(24, 200) + b"no request\n"))
            before = client.wait(name, lambda batch: batch["request_counts"]["completed"] >= 4)
            self.assertEqual(before["status"], "in_progress")
            self.assertIsNone(before["output_file_id"])
            server.process.kill()
            server.process.wait()
            server.process.returncode = 0  # wanted
        data = next(name for name in os.listdir(self.folder) if name.endswith(".data") and os.path.getsize(os.path.join(self.folder, name)) > 0
                    and not os.path.exists(os.path.join(self.folder, name.replace(".data", ".json"))) and b'"choices"' in self.read(name))
        kept = self.read(data)
        kept = kept[:kept.rfind(b"\n") + 1]
        self.assertGreaterEqual(kept.count(b"\n"), 4)
        with Server("--files", self.folder) as server:
            client = Client(server)
            batch = client.wait(name, lambda batch: batch["status"] == "completed")
            self.assertEqual(batch["request_counts"], {"total": 25, "completed": 24, "failed": 1})
            self.assertTrue(client.content(batch["output_file_id"]).startswith(kept))
            self.assertEqual({line["custom_id"] for line in client.lines(batch["output_file_id"])}, {f"r{i}" for i in range(24)})
            self.assertEqual([line["line"] for line in client.lines(batch["error_file_id"])], [25])
            generated = server.metric("coppice_generated_tokens_total")
            self.assertLessEqual(generated, (24 - kept.count(b"\n")) * 200)

    def read(self, name):
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def test_a_shutdown_does_not_wait_for_batches(self):
        with Server("--files", self.folder, "--batch-active", 1) as server:
            client = Client(server)
            name = client.create(client.upload(requests(200, 1000)))
            client.wait(name, lambda batch: batch["status"] == "in_progress")
            begin = time.monotonic()
        self.assertLess(time.monotonic() - begin, 30)
        with Server("--files", self.folder) as server:
            client = Client(server)
            self.assertIn(client.batch(name)["status"], ("in_progress", "validating"))
            self.assertEqual(client.ask("POST", f"/v1/batches/{name}/cancel")[1]["status"], "cancelling")
            client.wait(name, lambda batch: batch["status"] == "cancelled")
            server.wait_for("coppice_samples_running", 0)

    def test_a_full_disk_is_503(self):
        """A limit on the size of files stands for it."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        with Server("--files", self.folder, preexec=limit) as server:
            client = Client(server)
            status, headers, text = server.ask("POST", "/v1/files", form(b"a" * (3 << 20)), TYPE)
            self.assertEqual((status, headers["Retry-After"]), (503, "1"), text)
            self.assertNotIn(self.folder, text)
            self.assertIn(self.folder, server.logged())
            client.upload(b"{}")
        self.assertEqual(len([name for name in os.listdir(self.folder) if name.endswith(".data")]), 1)

    def test_two_servers_do_not_share_a_folder(self):
        with Server("--files", self.folder):
            second = coppice("serve", "--model", TINY, "--port", 0, "--kv-cache", "64MiB", "--files", self.folder)
            self.assertNotEqual(second.returncode, 0)
            self.assertIn("belongs to a server that runs", second.stderr)


if __name__ == "__main__":
    unittest.main()
