"""`coppice key` draws keys: each another one, its line and the key apart, and what is no name is refused."""

import hashlib
import re
import unittest

from program import coppice


class KeyTest(unittest.TestCase):
    def test_a_key_and_its_line(self):
        drawn = [coppice("key", "alice") for _ in range(2)]
        for done in drawn:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"^coppice-[0-9a-f]{64}\n$")
            self.assertEqual(done.stdout, f"alice {hashlib.sha256(done.stderr.strip().encode()).hexdigest()}\n")
        self.assertNotEqual(drawn[0].stderr, drawn[1].stderr)

    def test_what_is_no_name(self):
        for name in ("", "#a", "a b", "a\nb", "a\tb", " "):
            done = coppice("key", name)
            self.assertNotEqual(done.returncode, 0, name)
            self.assertEqual(done.stdout, "", name)
            self.assertTrue(re.search("expected one word", done.stderr), done.stderr)
        self.assertNotEqual(coppice("key").returncode, 0)


if __name__ == "__main__":
    unittest.main()
