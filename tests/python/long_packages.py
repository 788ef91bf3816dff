"""Packages of tests with the label long, installed by them or a reason to skip them (tests/server/packages.py)."""

import os
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [os.path.join(TESTS, "server"), os.path.join(TESTS, "cli")]

from packages import install_or_skip  # noqa: E402, F401
