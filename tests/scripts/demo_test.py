"""scripts/demo: which jobs it puts to Coppice and to another engine. Its packages, builds and programs are stand-ins that print their arguments."""

import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def write(path, text, executable=False):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755 if executable else 0o644)


class DemoTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for name in ("demo", "lib.sh", "apt-packages.txt"):
            os.makedirs(f"{self.root}/scripts", exist_ok=True)
            shutil.copy(f"{ROOT}/scripts/{name}", f"{self.root}/scripts/{name}")
        for tool in ("cmake", "nvidia-smi"):  # no GPU
            write(f"{self.root}/tools/{tool}", f"#!/bin/sh\n[ {tool} = cmake ]\n", executable=True)
        write(f"{self.root}/tools/dpkg-query", "#!/bin/sh\nprintf installed\n", executable=True)
        write(f"{self.root}/tools/nproc", "#!/bin/sh\necho 3\n", executable=True)
        write(f"{self.root}/scripts/fetch_grammar", "#!/bin/sh\n", executable=True)
        write(f"{self.root}/scripts/fetch_model", "#!/bin/sh\necho m.gguf\n", executable=True)
        write(f"{self.root}/build/release/coppice", '#!/bin/sh\necho coppice "$@"\n', executable=True)
        write(f"{self.root}/bench/peers/llama_samples.py", "import sys\nprint('llama', *sys.argv[1:])\n")

    def demo(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.root}/tools:{os.environ['PATH']}", "PYTHONPATH": ""}
        return subprocess.run([f"{self.root}/scripts/demo", *arguments], env=environment, capture_output=True, text=True, check=False)

    def test_one_job_with_and_without_sharing(self):
        done = self.demo()
        self.assertEqual(done.returncode, 0, done)
        answer, job = done.stdout.splitlines()
        self.assertTrue(answer.startswith("coppice run --model m.gguf --prompt "), answer)
        self.assertIn("Building takes 3 to 8 minutes with 3 idle cores", done.stderr)
        self.assertIn("run --model m.gguf --prompt-file examples/prompts/coppice.txt -n 64 --max-running 64 --max-tokens 64", job)
        self.assertIn("--baseline store", job)
        self.assertNotIn("--beside", job)

    def test_llama_cpp_does_the_same_job_first(self):
        write(f"{self.root}/build/llama-packages/xllamacpp/__init__.py", "")
        for arguments in (["--against", "llama.cpp"], ["--against=llama.cpp"]):
            done = self.demo(*arguments)
            self.assertEqual(done.returncode, 0, done)
            _, peer, job = done.stdout.splitlines()
            self.assertEqual(peer, "llama --model m.gguf --prompt-file examples/prompts/coppice.txt -n 64 --max-tokens 64 --threads 3 --out build/release/llama_samples.json")
            self.assertIn("-n 64", job)
            self.assertTrue(job.endswith("--threads 3 --beside build/release/llama_samples.json"), job)

    def test_without_the_package_a_line_says_how_to_get_it(self):
        write(f"{self.root}/build/llama-packages/xllamacpp/__init__.py", "raise ImportError('of another Python')\n")
        done = self.demo("--against", "llama.cpp")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("pip install --target build/llama-packages -r tests/server/requirements-llama.txt", done.stderr)
        self.assertNotIn("--beside", done.stdout)

    def test_a_model_that_cannot_be_fetched_ends_it(self):
        write(f"{self.root}/scripts/fetch_model", "#!/bin/sh\necho no network >&2\nexit 1\n", executable=True)
        done = self.demo()
        self.assertEqual((done.returncode, done.stdout), (1, ""), done)
        self.assertIn("the model could not be fetched, as said above", done.stderr)

    def test_other_arguments_are_refused_before_anything_is_installed(self):
        for arguments in (["--against", "ollama"], ["--against"], ["64"]):
            done = self.demo(*arguments)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done)
            self.assertIn("expected none or --against llama.cpp", done.stderr)


if __name__ == "__main__":
    unittest.main()
