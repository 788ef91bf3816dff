"""scripts/lib.sh, cuda_cmake_args: scripts/demo builds for a GPU where there is one and an nvcc for it, and says why where it does not."""

import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(gpus=None, nvcc=None):
    """(stdout's lines, stderr, folder of programs) where nvidia-smi prints `gpus` and nvcc says it is of release `nvcc`; None: it is not there."""
    with tempfile.TemporaryDirectory() as folder:

        def program(name, text):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + text)
            os.chmod(os.path.join(folder, name), 0o755)

        if gpus is not None:
            program("nvidia-smi", f"printf '%s\\n' {gpus}\n" if gpus else "echo 'No devices were found' >&2; exit 6\n")
        if nvcc is not None:
            program("nvcc", f"echo 'Cuda compilation tools, release {nvcc}, V{nvcc}.88'\n")
        for tool in ("dirname", "head", "sed", "sort"):  # and nothing else: this machine may have an nvcc and a GPU of its own
            os.symlink(shutil.which(tool), os.path.join(folder, tool))
        environment = {**os.environ, "PATH": folder, "CUDA_HOME": folder}
        done = subprocess.run(
            [shutil.which("bash"), "-euo", "pipefail", "-c", ". scripts/lib.sh; cuda_cmake_args"],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines(), done.stderr, folder


class CudaCmakeArgsTest(unittest.TestCase):
    def test_builds_for_the_first_gpu(self):
        args, said, folder = run("'NVIDIA H200, 9.0' 'NVIDIA T4, 7.5'", "13.0")
        self.assertEqual(args, ["-DCOPPICE_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={folder}/nvcc"])
        self.assertEqual(said, "")

    def test_without_a_gpu_there_is_nothing_to_say(self):
        for gpus in (None, ""):
            self.assertEqual(run(gpus, "13.0")[:2], ([], ""))

    def test_says_why_a_gpu_is_not_used(self):
        for gpus, nvcc, why in (
            ("'Tesla T4, 7.5'", "13.0", "Tesla T4 has compute capability 7.5, Coppice needs 8.0"),
            ("'NVIDIA A100, 8.0'", None, "there is a GPU (NVIDIA A100), but no nvcc"),
            ("'NVIDIA A100, 8.0'", "12.3", "is of CUDA 12.3, Coppice needs 12.4"),
        ):
            args, said, _ = run(gpus, nvcc)
            self.assertEqual(args, [])
            self.assertIn(why, said)

    def test_takes_releases_as_numbers(self):
        self.assertEqual(len(run("'NVIDIA A100, 8.0'", "12.10")[0]), 2)
        self.assertEqual(len(run("'NVIDIA B200, 10.0'", "12.8")[0]), 2)


if __name__ == "__main__":
    unittest.main()
