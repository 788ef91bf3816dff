"""`coppice simulate` beside two servers (bench/simulate_beside_servers.py): a mix of chats within 15%. Where all steps take as long, latencies are
bounded too; where a model runs, hits, reads and steps, since what its steps take is another machine's a minute later. Minutes; it wants an idle
machine."""

import json
import os
import subprocess
import sys
import unittest

from server_process import COPPICE, ROOT, default_model_or_skip

BOUND = 0.15


class SimulateServersTest(unittest.TestCase):
    def ratios(self, *arguments):
        """Forecast over measured, by policy."""
        command = [sys.executable, os.path.join(ROOT, "bench", "simulate_beside_servers.py"), "--coppice", COPPICE, "--model", default_model_or_skip(), *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1500)
        print("\n" + done.stdout)
        return json.loads(done.stdout.splitlines()[-1])["median_ratio"]

    def assert_within_bound(self, ratio, names):
        for name in names:
            with self.subTest(name):
                self.assertLess(abs(ratio[name] - 1), BOUND, ratio)

    def test_steps_that_all_take_as_long(self):
        ratios = self.ratios("--null-step", 20, "--requests", 150, "--rate", 2, "--think-seconds", 4, "--policies", "round-robin,prefix-hash,prefix-aware")
        for ratio in ratios.values():
            self.assertLess(abs(ratio["hit_rate"] - 1), 0.01)
            self.assert_within_bound(ratio, ("steps", "first_token_seconds_mean", "first_token_seconds_p50", "request_seconds_mean", "request_seconds_p50"))

    def test_the_default_model(self):
        ratios = self.ratios("--requests", 100, "--policies", "prefix-aware")
        self.assert_within_bound(ratios["prefix-aware"], ("hit_rate", "kv_bytes_read", "kv_bytes_read_unshared", "steps"))


if __name__ == "__main__":
    unittest.main()
