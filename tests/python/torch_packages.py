"""Makes torch importable for the tests that need it, or ends them as skipped."""

import sys

from long_packages import install_or_skip

sys.path.append(install_or_skip("torch", __file__))
