"""coppice_llm's rendezvous hashing with bounded loads, without Ray: the replicas of each prefix, and their load."""

import collections
import importlib.util
import math
import os
import random
import unittest

# Of the sources: importing the package would load the engine.
_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python", "coppice_llm", "_bounded_hash.py")
_SPEC = importlib.util.spec_from_file_location("_bounded_hash", _PATH)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
BoundedHash = _MODULE.BoundedHash

PLACES = [f"replica {i}" for i in range(8)]


class BoundedHashTest(unittest.TestCase):
    def test_names_have_places(self):
        idle = BoundedHash()
        homes = {name: idle.order(f"name {name}", PLACES)[0] for name in range(4000)}
        self.assertEqual(homes, {name: idle.order(f"name {name}", PLACES[::-1])[0] for name in range(4000)})
        for count in collections.Counter(homes.values()).values():
            self.assertTrue(400 < count < 600, count)
        # With a place gone, its names alone have others.
        for name, home in homes.items():
            left = idle.order(f"name {name}", [place for place in PLACES if place != PLACES[3]])[0]
            self.assertTrue(left == home or home == PLACES[3])

    def test_loads_are_bounded_whatever_is_asked_for(self):
        draw = random.Random(0)
        for bound in (1, 1.25, 2):
            hashing, under_way = BoundedHash(bound), []
            for request in range(3000):
                if under_way and draw.random() < 0.45:
                    hashing.end(under_way.pop(draw.randrange(len(under_way))))
                name = f"name {draw.randrange(3)}"  # few: one place would have most
                order = hashing.order(name, PLACES)
                self.assertEqual(sorted(order), PLACES)
                hashing.take(request, order[0])
                under_way.append(request)
                self.assertLessEqual(hashing.load(order[0]), math.ceil(bound * len(under_way) / len(PLACES)))
            self.assertEqual(sum(map(hashing.load, PLACES)), len(under_way))

    def test_a_name_is_at_home_while_there_is_room(self):
        hashing = BoundedHash(1.5)
        home = hashing.order("a", PLACES)[0]
        for request in range(64):
            hashing.take(request, PLACES[request % 8])  # 8 each: 1.5 times that is more than the home has
        self.assertEqual(hashing.order("a", PLACES)[0], home)
        for request in range(64, 70):
            hashing.take(request, home)
        self.assertNotEqual(hashing.order("a", PLACES)[0], home)
        second = hashing.order("a", PLACES)[0]
        self.assertEqual(second, BoundedHash().order("a", [place for place in PLACES if place != home])[0])
        hashing.end(64)
        self.assertEqual(hashing.order("a", PLACES)[0], home)

    def test_without_a_bound_a_name_is_always_at_home(self):
        hashing = BoundedHash(math.inf)
        home = hashing.order("a", PLACES)[0]
        for request in range(100):
            hashing.take(request, home)
        self.assertEqual(hashing.order("a", PLACES)[0], home)

    def test_without_a_name_the_least_loaded(self):
        hashing = BoundedHash()
        for request, place in enumerate(PLACES[1:]):
            hashing.take(request, place)
        self.assertEqual(hashing.order("", PLACES)[0], PLACES[0])

    def test_a_request_is_at_one_place(self):
        hashing = BoundedHash()
        hashing.take("r", "x")
        hashing.take("r", "y")
        self.assertEqual((hashing.load("x"), hashing.load("y")), (0, 1))
        hashing.end("r", "x")  # of an attempt before
        self.assertEqual(hashing.load("y"), 1)
        hashing.end("r", "y")
        hashing.end("r")
        self.assertEqual(hashing.load("y"), 0)
        with self.assertRaises(ValueError):
            BoundedHash(0.5)


if __name__ == "__main__":
    unittest.main()
