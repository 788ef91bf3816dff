"""Plans of an H200 and an H100 for the 14 trees of docs/kernels/hopper.md, byte for byte as committed. `coppice inspect plan --machine
h200` needs no GPU; with COPPICE_PLAN_DEVICE=cuda the plans are those of this machine's card, one of the two, which must say the same.
`--write` as an argument writes the files anew: a change of them is a change of plans and belongs into the commit that makes it."""

import os
import re
import sys
import unittest

from program import coppice

MACHINES = ("h200", "h100")
TREES = ("2048,32x1024", "1024,256x2,256x32", "512,2048x8,256x64", "1024,256x4,128x4,32x32", "256,32x4,256x4,64x4,32x4,256x4",
         "512x8,512x2,256x2,32x8", "512x4,32x4,128x16,32x2")


def golden_path(machine):
    return os.path.join(os.path.dirname(__file__), f"../data/plans/trees_{machine}.txt")


def commands(machine):
    return [f"coppice inspect plan --machine {machine} --tree {tree} --qo-heads 32 --kv-heads {heads}" for heads in (32, 8) for tree in TREES]


def inspect(args):
    done = coppice(*args)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def run(command):
    return f"$ {command}\n{inspect(command.split()[1:])}\n"


def run_on(device, command):
    args = command.split()[1:]
    at = args.index("--machine")
    args[at:at + 2] = ["--device", device, "--no-measure"]
    return f"$ {command}\n{inspect(args)}\n"


class PlanGoldenTest(unittest.TestCase):
    maxDiff = None

    def expect_golden(self, machine, run_one):
        with open(golden_path(machine), encoding="utf-8") as file:
            golden = file.read()
        self.assertEqual(golden.count("\n$ ") + 1, 14)
        for section, command in zip(golden.split("\n$ "), commands(machine)):
            with self.subTest(command):
                self.assertEqual(("" if section.startswith("$ ") else "$ ") + section.rstrip("\n"), run_one(command).rstrip("\n"))

    def test_the_14_trees(self):
        for machine in MACHINES:
            self.expect_golden(machine, run)

    @unittest.skipUnless(os.environ.get("COPPICE_PLAN_DEVICE"), "COPPICE_PLAN_DEVICE=cuda asks for it")
    def test_the_14_trees_on_this_card(self):
        device = os.environ["COPPICE_PLAN_DEVICE"]
        said = inspect(["inspect", "plan", "--device", device, "--no-measure"])
        machine = re.search(r", machine (\w+),", said).group(1)
        self.assertIn(machine, MACHINES)
        self.expect_golden(machine, lambda command: run_on(device, command))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for machine in MACHINES:
            with open(golden_path(machine), "w", encoding="utf-8") as file:
                file.write("".join(map(run, commands(machine))))
    else:
        unittest.main()
