"""scripts/check_includes: a clean tree passes, and each broken rule is reported with its file and line."""

import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE = {
    "include/coppice/core/status.h": "#pragma once\n",
    "include/coppice/attention/attention.h": '#pragma once\n#include "coppice/core/status.h"\n',
    "src/core/buffer.h": '#pragma once\n#include "coppice/core/status.h"\n',
    "src/attention/plan.h": '#pragma once\n#include "coppice/attention/attention.h"\n#include "core/buffer.h"\n',
    "src/attention/cuda/mma.cuh": '#include <cuda_runtime.h>\n__device__ void F() { asm volatile("nop;"); }\n',
}


def check(extra):
    """(exit status, report) of the checker on BASE with the files of `extra` (path -> text) added."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**BASE, **extra}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        run = subprocess.run([os.path.join(ROOT, "scripts", "check_includes"), root], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout


class CheckIncludesTest(unittest.TestCase):
    def expect(self, path, text, place, reason):
        status, report = check({path: text})
        self.assertEqual(status, 1, report)
        self.assertIn(f"{path}:{place}: ", report)
        self.assertIn(reason, report)

    def test_clean_tree(self):
        self.assertEqual(check({}), (0, ""))
        self.assertEqual(check({"include/coppice/attention/attention_c.h": "#ifndef X_H\n#define X_H\n#ifdef __cplusplus\n#endif\n#endif\n"}), (0, ""))

    def test_upward_arrow(self):
        self.expect("src/core/b.cc", '\n#include "attention/plan.h"\n', 2, "core includes attention/plan.h of layer attention")
        self.expect("src/core/b.cc", '#include "coppice/attention/attention.h"\n', 1, "of layer attention")

    def test_sideways_arrow(self):
        self.expect("src/tokenizer/b.cc", '#include "attention/plan.h"\n', 1, "it may include core")

    def test_relative(self):
        self.expect("src/attention/b.cc", '#include "../core/buffer.h"\n', 1, "relative include")
        self.expect("src/attention/b.cc", '#include "plan.h"\n', 1, "relative include")

    def test_public_header(self):
        self.expect("include/coppice/core/x.h", '#include "core/buffer.h"\n', 1, "private")
        self.expect("include/coppice/core/x.h", '#include "coppice/attention/attention.h"\n', 1, "of layer attention")
        self.expect("include/coppice/core/x.h", "#pragma once\n#ifdef COPPICE_CUDA\n#endif\n", 2, "in a public header")

    def test_cuda_stays_in_its_folder(self):
        self.expect("src/attention/x.cu", "", 1, "outside a folder cuda/")
        self.expect("src/attention/x.cc", "#include <cuda_runtime.h>\n", 1, "CUDA header")
        self.expect("src/attention/x.cc", '#include "attention/cuda/mma.cuh"\n', 1, "CUDA header")
        self.expect("src/attention/x.cc", 'void F() { asm volatile("nop"); }\n', 1, "asm outside")
        self.assertEqual(check({"src/attention/cpu/x.cc": 'void F() { asm("nop"); }\n'}), (0, ""))

    def test_a_library_is_seen_by_its_public_headers(self):
        include = '#include "coppice/attention/attention.h"\n#include "attention/plan.h"\n'
        self.expect("src/runner/b.h", include, 2, "attention/plan.h is private to attention")
        self.expect("src/ops/cuda/b.cuh", include, 2, "is private to attention")
        self.expect("src/cli/plan_inspect.cc", include, 2, "is private to attention")
        for path in ("attention_tools/b.cc", "cli/bench/b.cc", "cli/inspect_plan.cc", "runner/b_test.cc", "runner/testing/b.h"):
            self.assertEqual(check({f"src/{path}": include}), (0, ""))

    def test_helpers_of_tests_do_not_ship(self):
        include = '#include "core/testing/fake.h"\n'
        self.expect("src/core/b.cc", include, 1, "core/testing/fake.h is for tests and benchmarks")
        self.expect("src/attention/attestation.h", include, 1, "is for tests and benchmarks")
        for path in ("src/core/b_test.cc", "src/core/b_bench.cc", "src/core/testing/other.h", "tests/core/b.cc", "bench/b.cc"):
            self.assertEqual(check({path: include}), (0, ""))

    def test_unknown_layer(self):
        self.expect("src/novel/x.cc", "", 1, "no layer")


if __name__ == "__main__":
    unittest.main()
