"""What an H200 runs of the 14 trees of docs/kernels/hopper.md, byte for byte as committed. `coppice inspect plan --machine h200` needs
no GPU; with COPPICE_PLAN_DEVICE=cuda the plans are those of this machine's H200, which must say the same. `--write` as an argument
writes the file anew: a change of it is a change of plans and belongs into the commit that makes it."""

import os
import sys
import unittest

from program import coppice

GOLDEN = os.path.join(os.path.dirname(__file__), "../data/plans/trees_h200.txt")
TREES = ("2048,32x1024", "1024,256x2,256x32", "512,2048x8,256x64", "1024,256x4,128x4,32x32", "256,32x4,256x4,64x4,32x4,256x4",
         "512x8,512x2,256x2,32x8", "512x4,32x4,128x16,32x2")


def commands():
    return [f"coppice inspect plan --machine h200 --tree {tree} --qo-heads 32 --kv-heads {heads}" for heads in (32, 8) for tree in TREES]


def run(command):
    args = command.split()[1:]
    device = os.environ.get("COPPICE_PLAN_DEVICE")
    if device:
        at = args.index("--machine")
        args[at:at + 2] = ["--device", device, "--no-measure"]
    done = coppice(*args)
    assert (done.returncode, done.stderr) == (0, ""), done
    return f"$ {command}\n{done.stdout}\n"


class PlanGoldenTest(unittest.TestCase):
    maxDiff = None

    def test_the_14_trees(self):
        with open(GOLDEN, encoding="utf-8") as file:
            golden = file.read()
        self.assertEqual(golden.count("\n$ ") + 1, 14)
        for section, command in zip(golden.split("\n$ "), commands()):
            with self.subTest(command):
                self.assertEqual(("" if section.startswith("$ ") else "$ ") + section.rstrip("\n"), run(command).rstrip("\n"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        with open(GOLDEN, "w", encoding="utf-8") as file:
            file.write("".join(map(run, commands())))
    else:
        unittest.main()
