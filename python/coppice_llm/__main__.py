"""`python -m coppice_llm ARGS`: the program `coppice`, which the package carries, takes this process's place."""

import os
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "coppice")

if __name__ == "__main__":
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
