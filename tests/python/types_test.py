"""Types of coppice_llm: a user's program passes mypy --strict, mistakes are reported, and the package agrees with itself."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(FOLDER)), "python")
MISTAKES = """from coppice_llm import LLM, SamplingParams
llm = LLM(3)  # "LLM" has incompatible type "int"
llm.generate("x", 3)  # "generate" of "LLM" has incompatible type "int"
SamplingParams(temperatur=1)  # Unexpected keyword argument "temperatur"
llm.nothing()  # "LLM" has no attribute "nothing"
llm.generate("x").text  # "list[Completion]" has no attribute "text"
llm.fork("x")  # "fork" of "LLM" has incompatible type "str"
"""


class Types(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """cls.received: by file, (line, message) of mypy --strict."""
        cls.program = os.path.join(FOLDER, "typed_program.py")
        cls.modules = [os.path.join(PACKAGE, "coppice_llm", f"{name}.py") for name in ("_types", "_llm", "attention")]
        with tempfile.TemporaryDirectory() as folder:
            cls.mistakes = os.path.join(folder, "mistakes.py")
            with open(cls.mistakes, "w", encoding="utf-8") as file:
                file.write(MISTAKES)
            command = [sys.executable, "-m", "mypy", "--no-error-summary", "--strict", "--cache-dir", folder, cls.program, cls.mistakes, *cls.modules]
            environment = os.environ | {"MYPYPATH": PACKAGE, "PYTHONPATH": os.pathsep.join(sys.path)}
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False, timeout=600).stdout
        cls.received = {}
        for file, line, message in re.findall(r"^(.*?):(\d+): error: (.*)$", text, re.MULTILINE):
            cls.received.setdefault(os.path.abspath(file), []).append((int(line), message))

    def test_a_users_program(self):
        self.assertEqual(self.received.get(self.program, []), [])

    def test_mistakes_are_reported(self):
        expected = [(i, line.partition("  # ")[2]) for i, line in enumerate(MISTAKES.splitlines(), 1) if "  # " in line]
        received = self.received[self.mistakes]
        self.assertEqual([line for line, _ in received], [line for line, _ in expected])
        for (_, message), (_, words) in zip(received, expected):
            self.assertIn(words, message)

    def test_the_modules_of_the_package(self):
        for module in self.modules:
            self.assertEqual(self.received.get(module, []), [])

    def test_the_stub_has_what_the_extension_has(self):
        from coppice_llm import _native

        with open(os.path.join(PACKAGE, "coppice_llm", "_native.pyi"), encoding="utf-8") as file:
            stub = file.read()
        for name, kind in vars(_native).items():
            if name.startswith("__"):
                continue
            self.assertRegex(stub, rf"(class|def) {name}\b")
            for method in vars(kind) if isinstance(kind, type) else ():
                if not method.startswith("__"):
                    self.assertIn(f"def {method}(", stub, f"of {name}")


if __name__ == "__main__":
    if importlib.util.find_spec("mypy") is None:
        print("skipped: no mypy; scripts/test installs it")
        sys.exit(77)
    unittest.main()
