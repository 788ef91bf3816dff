"""Settings of vLLM that the scripts of this folder share. They import it before hide_this_folder()."""

import os
import sys

# No network, no statistics, and the kernels of vLLM's own wheel.
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


def hide_this_folder():
    """It comes first in the path of its scripts, where vllm.py would hide the package of that name."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]


def set_environment(**more):
    """ENVIRONMENT and `more`, where nothing else is set."""
    for key, value in (ENVIRONMENT | more).items():
        os.environ.setdefault(key, value)


def capture_sizes(most):
    """Batches of which graphs are captured, up to the largest."""
    return [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024) if size <= most]
