"""A server whose system refuses it memory: requests that need more end with a 503 or a closed connection, and the server goes on."""

import http.client
import itertools
import resource
import threading
import time
import unittest

from server_process import Server

SLACK = 150 << 20  # bytes, beyond what the server maps at its start
SIZE = 10 << 20  # of a body at most


def list_of(element):
    return "[" + ",".join([element] * ((SIZE - 100) // (len(element) + 1))) + "]"


# As large as bodies may be, of as many containers and values as they hold: in memory each takes twenty times its text.
BODIES = [
    list_of("1"),
    '{"prompt":' + list_of("[1]") + "}",
    '{"messages":' + list_of('{"role":"user","content":"a"}') + "}",
    '{"messages":[],"tools":' + list_of("{}") + "}",
    '{"prompt":[1],"logit_bias":{' + ",".join(f'"{i}":1' for i in range(SIZE // 14)) + "}}",
]
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/score", "/tokenize", "/v1/batches", "/v1/prefixes/x"]


def served(server):
    try:
        return server.ask("GET", "/health")[0] == 200 and server.complete(max_tokens=4)[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


class MemoryTest(unittest.TestCase):
    def test_bodies_that_do_not_fit(self):
        with Server() as server:
            with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
                mapped = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (mapped + SLACK, resource.RLIM_INFINITY))
            statuses = []

            def send(requests):
                for path, body in requests:
                    try:
                        statuses.append(server.ask("PUT" if "prefixes" in path else "POST", path, body)[0])
                    except (ConnectionError, http.client.HTTPException):  # refused while it was read, or no memory for an answer
                        statuses.append(None)

            every = list(itertools.product(PATHS, BODIES))
            threads = [threading.Thread(target=send, args=(every[i::3],)) for i in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertIsNone(server.process.poll(), server.logged())
            self.assertEqual(len(statuses), len(every))
            self.assertLessEqual(set(statuses), {400, 500, 503, None})
            self.assertTrue({503, None} & set(statuses), "no request ran out of memory")
            # Those whose clients have gone may still be read.
            deadline = time.monotonic() + 30
            while not served(server) and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertEqual(server.complete(max_tokens=4)[0], 200)


if __name__ == "__main__":
    unittest.main()
