"""examples/nginx/coppice.conf in Debian's nginx: TLS, streams as they come, and requests that begin alike on the same of two servers."""

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

from server_process import ROOT, Server, free_port, raw_request

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
KEYS = "me 2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 role=admin\n"  # alice
KEY = {"Authorization": "Bearer alice"}


class NginxTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(KEYS)
        self.servers = [Server("--api-keys", keys), Server("--api-keys", keys)]
        for server in self.servers:
            self.enterContext(server)
        self.start_nginx()
        self.tls = ssl.create_default_context(cafile=self.certificate)

    def start_nginx(self):
        """The example with this test's ports and a certificate of its own."""
        self.port = free_port()
        self.certificate, key = os.path.join(self.folder, "cert.pem"), os.path.join(self.folder, "cert.key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost", "-keyout", key, "-out", self.certificate], check=True, capture_output=True)
        with open(os.path.join(ROOT, "examples", "nginx", "coppice.conf"), encoding="utf-8") as file:
            text = file.read()
        for old, new in (("127.0.0.1:8000", f"127.0.0.1:{self.servers[0].port}"), ("127.0.0.1:8001", f"127.0.0.1:{self.servers[1].port}"),
                         ("listen 443", f"listen 127.0.0.1:{self.port}"), ("server_name llm.example.org", "server_name localhost"),
                         ("/etc/nginx/llm.example.org.pem", self.certificate), ("/etc/nginx/llm.example.org.key", key)):
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        with open(os.path.join(self.folder, "coppice.conf"), "w", encoding="utf-8") as file:
            file.write(text)
        paths = "".join(f"{name}_temp_path {self.folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;\n" if os.geteuid() == 0 else ""
        with open(os.path.join(self.folder, "nginx.conf"), "w", encoding="utf-8") as file:
            file.write(f"daemon off;\n{user}pid {self.folder}/pid;\nerror_log stderr warn;\nevents {{}}\n"
                       f"http {{\naccess_log off;\n{paths}include {self.folder}/coppice.conf;\n}}\n")
        self.nginx = subprocess.Popen([NGINX, "-p", self.folder, "-c", "nginx.conf", "-e", "stderr"], stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.stop_nginx)
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.nginx.poll() is not None:
                self.fail(self.nginx.stderr.read())
            time.sleep(0.02)
        self.fail("nginx does not listen")

    def stop_nginx(self):
        self.nginx.terminate()
        self.nginx.wait(timeout=60)
        self.nginx.stderr.close()

    def ask(self, method, path, body=None, headers=KEY):
        """(status, text)."""
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=120, context=self.tls)
        try:
            given = dict(headers)
            if body is not None:
                given["Content-Type"] = "application/json"
                body = json.dumps(body)
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def complete(self, **fields):
        status, text = self.ask("POST", "/v1/completions", {"max_tokens": 2, "ignore_eos": True} | fields)
        self.assertEqual(status, 200, text)
        return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def answered(self):
        """Completions that each server has answered."""
        counts = []
        for server in self.servers:
            text = server.ask("GET", "/metrics", headers=KEY)[2]
            lines = [line for line in text.splitlines() if line.startswith('coppice_http_requests_total{route="/v1/completions",status="200"}')]
            counts.append(int(lines[0].split()[1]) if lines else 0)
        return counts

    def test_requests_that_begin_alike_meet(self):
        for seed in range(24):
            before = self.answered()
            prompt = [3 + (seed * 31 + i * 7) % 240 for i in range(400)]
            cached = [self.complete(prompt=prompt + [own, own, own]) for own in range(5, 8)]
            self.assertEqual(cached[0], 0)
            self.assertTrue(all(tokens >= 400 for tokens in cached[1:]), cached)
            self.assertEqual(sorted(now - then for now, then in zip(self.answered(), before)), [0, 3])
        self.assertGreater(min(self.answered()), 0)  # 24 prefixes on one server: once in 2^23 choices of ports

    def test_prefixes_are_where_their_requests_go(self):
        for first, name in enumerate(("garden", "library", "harbour", "mill"), 20):
            status, text = self.ask("PUT", f"/v1/prefixes/{name}", {"prompt": [first, *range(100, 199)]})
            self.assertEqual(status, 200, text)
            self.assertEqual(self.complete(prefix=name, prompt=[9, 8, 7]), 100)
            self.assertEqual(self.ask("GET", f"/v1/prefixes/{name}")[0], 200)
            self.assertEqual(self.ask("DELETE", f"/v1/prefixes/{name}")[0], 200)

    def test_streams_come_as_they_are_made_and_end_with_the_client(self):
        request = raw_request({"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "stream": True}, Authorization="Bearer alice")
        with self.tls.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=60), server_hostname="localhost") as connection:
            connection.sendall(request)
            received = b""
            while received.count(b"data: ") < 3:
                received += connection.recv(4096)
            running = [self.value(server, "coppice_samples_running") for server in self.servers]
            self.assertEqual(sum(running), 1)  # the first objects are here while the rest is being made
        for server in self.servers:
            for _ in range(3000):
                if self.value(server, "coppice_samples_running") == 0:
                    break
                time.sleep(0.01)
        self.assertLess(sum(self.value(server, "coppice_generated_tokens_total") for server in self.servers), 1900)

    def value(self, server, name):
        text = server.ask("GET", "/metrics", headers=KEY)[2]
        return [float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " ")][0]

    def test_errors_pass_through(self):
        self.assertEqual(self.ask("GET", "/v1/models", headers={})[0], 401)
        self.assertEqual(self.ask("GET", "/health", headers={})[0], 200)
        self.assertEqual(self.ask("GET", "/metrics")[0], 404)
        status, text = self.ask("POST", "/v1/completions", {"prompt": [5], "suffix": "x"})
        self.assertEqual((status, json.loads(text)["error"]["param"]), (400, "suffix"))
        self.assertEqual(self.ask("POST", "/v1/completions", {"prompt": [5], "user": "x" * (11 << 20)})[0], 413)
        self.assertEqual(self.ask("POST", "/v1/completions", {"user": "x" * (2 << 20), "prompt": [5], "max_tokens": 1})[0], 200)

    def test_one_server_is_enough(self):
        stopped = self.servers[0]
        stopped.process.terminate()
        self.assertEqual(stopped.process.wait(timeout=60), 0)
        for seed in range(8):
            self.complete(prompt=[5 + seed, 6, 7])


if __name__ == "__main__":
    if NGINX is None:
        print("skipped: there is no nginx")
        sys.exit(77)
    unittest.main()
