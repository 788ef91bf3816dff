"""Makes torch importable for the tests that need it, or ends them as skipped."""

import os
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [os.path.join(TESTS, "server"), os.path.join(TESTS, "cli")]

from packages import install_or_skip  # noqa: E402

sys.path.append(install_or_skip("torch", __file__))
