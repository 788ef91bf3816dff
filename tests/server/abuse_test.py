"""Hostile and broken clients: each gets a 4xx or a closed connection, and the server goes on."""

import socket
import struct
import threading
import time
import unittest

from server_process import Server, raw_request, read_all, statuses


class AbuseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-running", 8))

    def tearDown(self):
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)
        self.server.wait_for("coppice_http_requests_active", 0)

    def send(self, data, half_close=True):
        """The answer to `data` after which the client sends no more."""
        with self.server.connect() as connection:
            try:
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the server has answered and closed before it read everything
            return read_all(connection)

    def test_bodies(self):
        for body in (
            b"",
            b"nonsense",
            b'{"prompt": [1], ',
            b'{"prompt": "\xff\xfe"}',
            b'{"prompt": "\\ud800"}',
            b"[" * 100_000,
            b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"prompt": [1], "max_tokens": 1e999}',
            b'{"prompt": [1], "max_tokens": 99999999999999999999999}',
            b'{"prompt": [1], "max_tokens": -2}',
            b'{"prompt": [1], "n": 2147483647}',
            b'{"prompt": [1], "temperature": -1}',
            b'{"prompt": [1], "temperature": 1e308}',
            b'{"prompt": [1], "timeout": 1e300}',
            b'{"prompt": [1], "top_p": "x"}',
            b'{"prompt": [1], "cache_private_begin": -5, "cache_salt": "a"}',
            b'{"prompt": [1e300]}',
            b'{"prompt": [-1]}',
            b'{"prompt": []}',
            b'{"prompt": [1], "logit_bias": {"0": 1e300}}',
            b'{"prompt": [1], "stop": [[["a"]]]}',
            b'{"prompt": [1], "stream": "yes"}',
            b'{"prompt": [1]}{"prompt": [1]}',
            b'\xef\xbb\xbf{"prompt": [1]}\x00',
            b'"' + b"a" * 1_000_000 + b'"',
        ):
            received = self.send(raw_request(body, Connection="close"), half_close=False)
            self.assertEqual(statuses(received), [400], (body[:60], received[:300]))

    def test_bodies_of_prefixes(self):
        for body in (
            b"",
            b"[]",
            b"{}",
            b'{"prompt": [1], "messages": []}',
            b'{"messages": "x"}',
            b'{"messages": [{"role": "user", "content": "no tokenizer"}]}',
            b'{"prompt": "no tokenizer"}',
            b'{"prompt": [[1]]}',
            b'{"prompt": [99999999]}',
            b'{"prompt": [1], "ttl_seconds": -1}',
            b'{"prompt": [1], "ttl_seconds": 1e300}',
            b'{"prompt": [1], "ttl_seconds": "1"}',
            b'{"prompt": [1], "cache_salt": 5}',
            b'{"prompt": [1], "cache_salt": "s", "cache_private_begin": -1}',
            b'{"prompt": [1], "n": 2}',
            b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        ):
            request = raw_request(body, path="/v1/prefixes/a", Connection="close").replace(b"POST", b"PUT", 1)
            self.assertEqual(statuses(self.send(request, half_close=False)), [400], body[:60])
        for name in ("%00", "a%2Fb", "..%2f..", "a" * 65, "a/b"):
            self.assertEqual(self.server.ask("PUT", f"/v1/prefixes/{name}", {"prompt": [1]})[0], 400, name)
            self.assertEqual(self.server.ask("DELETE", f"/v1/prefixes/{name}")[0], 404, name)
        self.assertEqual(self.server.ask("PUT", "/v1/prefixes/", {"prompt": [1]})[0], 405)
        self.assertEqual(self.server.ask("PUT", "/v1/prefixes/a", "prompt=1", {"Content-Type": "text/plain"})[0], 415)
        self.assertEqual(self.server.ask("GET", "/v1/prefixes")[2], '{"object":"list","data":[]}')

    def test_requests_that_are_not_http(self):
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
            b"GET\r\n\r\n",
            b"\x00" * 100,
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\nA B: c\r\n\r\n",
            b"GET / HTTP/1.1\r\n: c\r\n\r\n",
            raw_request({}, Transfer_Encoding="chunked"),  # two lengths
            raw_request({}, Transfer_Encoding="gzip"),
            raw_request({}).replace(b"Content-Length: 2", b"Transfer-Encoding: gzip"),
            raw_request({}).replace(b"Content-Length: 2", b"Transfer-Encoding: gzip, chunked"),
            raw_request({}).replace(b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"zz\r\n",
            raw_request({}).replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Content-Length: 2", b"Transfer-Encoding: chunked"),
            raw_request({}).replace(b"Content-Length: 2", b"Content-Length: -2"),
            raw_request({}).replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 3"),
            raw_request({}).replace(b"Content-Length: 2", b"Content-Length: 99999999999999999999"),
        ):
            received = self.send(data)
            self.assertIn(statuses(received), ([], [400]), (data, received))

    def test_heads_that_may_be_read_in_two_ways(self):
        whole = raw_request({"prompt": [1], "max_tokens": 1}, Connection="close")
        self.assertEqual(statuses(self.send(whole, half_close=False)), [200])
        length = next(line for line in whole.split(b"\r\n") if line.startswith(b"Content-Length"))
        for before, behind in (
            (b"Host: localhost\r\n", b""),
            (b"Host: localhost", b"Host: localhost\r\nHost: localhost"),
            (b"Host: localhost", b"Host: localhost\r\nhost: evil.example"),
            (b"Host: localhost", b"Host: localhost:80@evil.example"),
            (b"Host: localhost", b"Host: localhost/"),
            (b"Host: localhost", b"Host: localhost\r\nX: a\r\n b"),
            (length, length + b"\r\n" + length),
            (length, length + b", " + length.split()[1]),
            (length, length.replace(b": ", b":\r\n ")),
            (b"/v1/completions", b"http://user@localhost/v1/completions"),
        ):
            received = self.send(whole.replace(before, behind, 1), half_close=False)
            self.assertEqual(statuses(received), [400], (behind, received))

    def test_pages_of_other_sites(self):
        body = {"prompt": [1], "max_tokens": 1}
        for origin, expected in ((self.server.url, 200), ("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:1", 403)):
            self.assertEqual(self.server.ask("POST", "/v1/completions", body, {"Origin": origin})[0], expected, origin)
        self.assertEqual(self.server.ask("PUT", "/v1/prefixes/a", {"prompt": [1]}, {"Origin": "http://evil.example"})[0], 403)
        self.assertEqual(self.server.ask("DELETE", "/v1/prefixes/a", None, {"Origin": "http://evil.example"})[0], 403)
        self.assertEqual(self.server.ask("GET", "/health", None, {"Origin": "http://evil.example"})[0], 200)

    def test_too_large(self):
        large = b"{" + b" " * (10 << 20) + b"}"
        self.assertEqual(statuses(self.send(raw_request(large))), [413])
        # Refused by the length alone, before a byte of the body.
        announced = raw_request(b"").replace(b"Content-Length: 0", b"Content-Length: 99999999\r\nExpect: 100-continue")
        self.assertEqual(statuses(self.send(announced)), [413])
        chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
        chunked = raw_request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunk * 11 + b"0\r\n\r\n"
        self.assertEqual(statuses(self.send(chunked)), [413])
        self.assertEqual(statuses(self.send(b"GET /health HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n")), [431])
        self.assertEqual(statuses(self.send(b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * 5_000 + b"\r\n")), [431])
        self.assertEqual(statuses(self.send(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n")), [431])

    def test_chunk_extensions_are_bounded(self):
        endless = raw_request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"1;" + b"a" * (4 << 20)
        self.assertIn(statuses(self.send(endless)), ([400], [431]))

    def test_paths_and_methods(self):
        for line, expected in (
            (b"GET /../../etc/passwd", 404),
            (b"GET /v1/models/%00%ff", 404),
            (b"GET //health", 404),
            (b"OPTIONS *", 404),
            (b"TRACE /health", 405),
            (b"BREW /health", 405),
            (b"DELETE /v1/completions", 405),
            (b"GET http://localhost/health?x=/", 200),
            (b"GET http://localhost", 200),
            (b"GET http://elsewhere/health", 403),
            (b"GET /health HTTP/1.1\r\nHost: elsewhere", 403),
            (b"GET http://elsewhere/health HTTP/1.1\r\nHost: localhost", 403),
        ):
            if b"HTTP/1.1" not in line:
                line += b" HTTP/1.1\r\nHost: localhost"
            received = self.send(line + b"\r\nConnection: close\r\n\r\n", half_close=False)
            self.assertEqual(statuses(received), [expected], line)

    def test_pipelined_requests_are_answered_in_order(self):
        data = b"".join(raw_request({"prompt": [i], "max_tokens": 1}) for i in (1, 99999999, 2)) + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        self.assertEqual(statuses(self.send(data, half_close=False)), [200, 400, 200, 200])

    def test_a_slow_client_is_served_and_delays_no_other(self):
        data = raw_request({"prompt": [1], "max_tokens": 1}, Connection="close")
        with self.server.connect() as connection:
            for i in range(0, len(data), 10):
                connection.sendall(data[i : i + 10])
                begin = time.monotonic()
                self.assertEqual(self.server.ask("GET", "/health")[0], 200)
                self.assertLess(time.monotonic() - begin, 5)
            self.assertEqual(statuses(read_all(connection)), [200])

    def test_expect_continue(self):
        body = b'{"prompt": [1], "max_tokens": 1}'
        head, _, _ = raw_request(body, Expect="100-continue", Connection="close").partition(b"\r\n\r\n")
        with self.server.connect() as connection:
            connection.sendall(head + b"\r\n\r\n")
            self.assertEqual(connection.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.sendall(body)
            self.assertEqual(statuses(read_all(connection)), [200])

    def test_connections_cut_anywhere(self):
        data = raw_request({"prompt": [1, 2], "max_tokens": 200, "ignore_eos": True, "stream": True})

        def cut(length, reset):
            with self.server.connect() as connection:
                connection.sendall(data[:length])
                if length == len(data):
                    connection.recv(1)
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        threads = [threading.Thread(target=cut, args=(length, length % 2)) for length in [*range(0, len(data), 7), *[len(data)] * 10]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.server.wait_for("coppice_samples_running", 0)

    def test_a_client_that_reads_nothing_ends_with_its_stream(self):
        tokens = self.server.metric("coppice_generated_tokens_total")
        with self.server.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(raw_request({"prompt": [1, 2], "max_tokens": 300, "n": 8, "ignore_eos": True, "stream": True, "logprobs": 20}))
            self.server.wait_for("coppice_generated_tokens_total", tokens + 2400, at_least=True)


if __name__ == "__main__":
    unittest.main()
