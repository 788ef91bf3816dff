"""Salts and API keys isolate in time: a request for a prompt that another client has cached waits as long as for a new one.

Pairs of requests of one salt, or key: a prompt that another one has just cached, and a new one of the same length, in random order. Their
times to the first token are compared by the 20% trimmed mean of the paired differences (Yuen), two-sided at level 0.001. The gap is the
trimmed mean of what a prompt costs more when it is not cached than when it is, measured beside. The test goes on from 200 pairs until it would
see a difference of 5% of the gap with power 0.9, that is, until (z(0.9995) + z(0.9)) standard errors are below it.
"""

import hashlib
import json
import math
import random
import statistics
import tempfile
import time
import unittest

from server_process import Server, raw_request

PAIRS, MOST_PAIRS = 200, 3000
TOKENS = 1000
LEVEL, POWER, PART = 0.001, 0.9, 0.05


def trimmed_mean(values, trim=0.2):
    """The mean of the middle, and its standard error (Yuen 1974)."""
    values = sorted(values)
    cut = int(trim * len(values))
    middle = values[cut:len(values) - cut]
    winsorized = [middle[0]] * cut + middle + [middle[-1]] * cut
    return statistics.fmean(middle), statistics.stdev(winsorized) / ((1 - 2 * trim) * math.sqrt(len(values)))


class SaltTimingTest(unittest.TestCase):
    def first_token(self, server, prompt, client):
        """Seconds until the first token of a stream. `client`: fields of the body and headers."""
        fields, headers = client
        request = raw_request({"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "stream": True} | fields, Connection="close", **headers)
        with server.connect() as connection:
            begin = time.perf_counter()
            connection.sendall(request)
            received = b""
            while b"data: " not in received:
                part = connection.recv(65536)
                self.assertTrue(part, received)
                received += part
            seconds = time.perf_counter() - begin
            while connection.recv(65536):
                pass
        self.assertIn(b" 200 ", received.splitlines()[0])
        return seconds

    def test_salts(self):
        self.expect_no_difference((), lambda name: ({"cache_salt": name}, {}))

    def test_keys(self):
        """With the same salt, so that the keys alone part them."""
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.writelines(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("warm", "victim", "attacker"))
            keys.flush()
            self.expect_no_difference(("--api-keys", keys.name), lambda name: ({"cache_salt": "victim"}, {"Authorization": f"Bearer {name}"}))

    def expect_no_difference(self, options, client):
        """`client`: the fields and headers of a request of that name."""
        chance = random.Random(11)
        normal = statistics.NormalDist()
        differences, gaps = [], []
        with Server("--max-context", 1024, *options) as server:
            def prompt():
                return [chance.randrange(3, 250) for _ in range(TOKENS)]

            self.first_token(server, prompt(), client("warm"))
            while True:
                known, unknown = prompt(), prompt()
                self.first_token(server, known, client("victim"))
                seconds = {}
                for name in chance.sample(("known", "unknown"), 2):
                    seconds[name] = self.first_token(server, known if name == "known" else unknown, client("attacker"))
                cached = self.first_token(server, unknown, client("attacker"))
                differences.append(seconds["known"] - seconds["unknown"])
                gaps.append(seconds["unknown"] - cached)
                if len(differences) < PAIRS:
                    continue
                difference, error = trimmed_mean(differences)
                gap, gap_error = trimmed_mean(gaps)
                detectable = (normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(POWER)) * error
                if detectable <= PART * gap or len(differences) == MOST_PAIRS:
                    break
        report = {"pairs": len(differences), "difference_us": 1e6 * difference, "standard_error_us": 1e6 * error, "gap_us": 1e6 * gap,
                  "gap_error_us": 1e6 * gap_error, "detectable_part_of_gap": detectable / gap}
        print(json.dumps(report))
        self.assertGreater(gap, 10 * gap_error, report)
        self.assertLessEqual(detectable, PART * gap, report)  # else this machine is too restless to measure
        self.assertLessEqual(abs(difference), normal.inv_cdf(1 - LEVEL / 2) * error, report)


if __name__ == "__main__":
    unittest.main()
