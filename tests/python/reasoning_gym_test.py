"""The example of self-consistency over reasoning-gym: the vote of many is no worse than a sample, none is better than the best."""

import re
import unittest

import long_packages

import examples_test


class ReasoningGym(unittest.TestCase):
    def test_votes(self):
        said = examples_test.run("reasoning_gym_votes.py", examples_test.default_model_or_skip(), "chain_sum", "8", "16",
                                 packages=long_packages.install_or_skip("reasoning-gym", __file__))
        sample, vote, best = (float(re.search(f"^{name}: (.*)$", said, re.MULTILINE)[1]) for name in ("a sample", "the vote of 16", "the best of 16"))
        self.assertLessEqual(sample, vote)  # of this model, these questions and this seed
        self.assertLessEqual(vote, best)
        self.assertGreater(best, 0)
        read, alone = map(int, re.search(r"KV read: (\d+) MiB; each sample for itself: (\d+) MiB", said).groups())
        self.assertLess(2 * read, alone)


if __name__ == "__main__":
    unittest.main()
