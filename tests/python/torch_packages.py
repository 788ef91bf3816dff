"""Makes torch importable for the tests that need it, or ends them as skipped. A torch that is there serves, of whatever version."""

import importlib.util
import sys

from long_packages import install_or_skip

if not all(importlib.util.find_spec(name) for name in ("torch", "safetensors")):
    sys.path.append(install_or_skip("torch", __file__))
