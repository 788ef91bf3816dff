"""Files and batches over HTTP, as the tests of this folder ask for them."""

import http.client
import json
import time

BOUNDARY = "a-boundary"
TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(data, purpose="batch"):
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
    head += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def requests(count, max_tokens):
    lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
              "body": {"prompt": [5, 6, 7 + i], "max_tokens": max_tokens, "ignore_eos": True}} for i in range(count)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


class Client:
    def __init__(self, server, **headers):
        self.server = server
        self.headers = headers

    def ask(self, method, path, body=None, **headers):
        status, _, text = self.server.ask(method, path, body, self.headers | headers)
        return status, json.loads(text)

    def upload(self, data):
        status, answer = self.ask("POST", "/v1/files", form(data), **TYPE)
        assert status == 200, answer
        return answer["id"]

    def create(self, file):
        status, answer = self.ask("POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})
        assert status == 200, answer
        return answer["id"]

    def batch(self, name):
        return self.ask("GET", f"/v1/batches/{name}")[1]

    def wait(self, name, reached, seconds=120):
        end = time.monotonic() + seconds
        while not reached(batch := self.batch(name)):
            if time.monotonic() > end:
                raise AssertionError(f"after {seconds} s: {batch}")
            time.sleep(0.01)
        return batch

    def content(self, file):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            connection.request("GET", f"/v1/files/{file}/content", headers=self.headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            return response.read()
        finally:
            connection.close()

    def lines(self, file):
        return [json.loads(line) for line in self.content(file).splitlines()]
