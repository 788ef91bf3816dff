"""coppice_llm.attention over tensors of torch, and torch.ops.coppice: random forests against torch's own attention and float64, operators as
torch.compile wants them. 5 GB of packages."""

import os
import subprocess
import sys
import unittest

import torch_packages  # noqa: F401

import examples_test
import numpy
import torch
from attention_test import PAGE
from safetensors.torch import load_file
from torch_case import TOLERANCES, TorchCase

from coppice_llm import attention

class Attention(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.device = attention.Device("cpu", num_threads=2)

    def test_random_forests_are_as_sdpa_has_them(self):
        options = [{}, {"force_sharing": True}, {"share": False}, {"deterministic": True}]
        for seed in range(48):
            dtype = list(TOLERANCES)[seed % 3]
            with self.subTest(seed=seed, dtype=dtype):
                case = TorchCase(seed, self.device, dtype, ("NHD", "HND")[seed % 2], **options[seed // 3 % 4])
                case.check(self, attention.run(case.q, case.kv, case.plan))

    def test_tables_and_slots_are_tensors(self):
        case = TorchCase(3, self.device, torch.bfloat16)
        tables, lengths, queries = zip(*case.branches)
        wide = torch.full((len(tables), max(map(len, tables))), -1, dtype=torch.int32)
        for row, table in zip(wide, tables):
            row[:len(table)] = torch.tensor(table)
        case.plan.update(attention.Forest.of_page_tables(wide, torch.tensor(lengths), torch.tensor(queries), PAGE))
        case.check(self, attention.run(case.q, case.kv, case.plan))
        k, v = torch.ones(2, 2, case.kv_heads, case.dim, dtype=torch.bfloat16)
        case.kv.append(k, v, torch.tensor([7, -1]))
        self.assertTrue(torch.equal(case.k.flatten(0, 1)[7], k[0]))
        with self.assertRaisesRegex(ValueError, "slots is \\[2\\].*32 bits.*int64"):
            case.kv.append(k, v, torch.tensor([7, -1], dtype=torch.int32))

    def test_torch_is_imported_when_it_is_needed(self):
        code = "import sys; sys.path[:] = %r; from coppice_llm import LLM, attention; assert 'torch' not in sys.modules; attention.torch_ops(); assert 'torch' in sys.modules"
        subprocess.run([sys.executable, "-c", code % sys.path], check=True, timeout=300)

    def test_gradients_are_refused(self):
        case = TorchCase(0, self.device, torch.float32)
        case.q.requires_grad_()
        with self.assertRaisesRegex(TypeError, "q requires a gradient.*no_grad"):
            attention.run(case.q, case.kv, case.plan)
        with torch.no_grad():
            attention.run(case.q, case.kv, case.plan)


class Operators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.device = attention.Device("cpu", num_threads=2)
        cls.ops = attention.torch_ops()

    def test_torch_accepts_them(self):
        case = TorchCase(1, self.device, torch.bfloat16, "HND")
        out, lse = self.ops.run(case.q, case.k, case.v, case.plan.handle, True)
        new_k, new_v = torch.randn(2, 2, case.kv_heads, case.dim).to(torch.bfloat16)
        torch.library.opcheck(self.ops.run, (case.q, case.k, case.v, case.plan.handle, True))
        torch.library.opcheck(self.ops.merge_states, ([out, out], [lse, lse], self.device.handle))
        torch.library.opcheck(self.ops.append_kv, (case.k, case.v, new_k, new_v, torch.tensor([3, -1]), self.device.handle, True))

    def test_rows_behind_the_queries_see_nothing(self):
        case = TorchCase(2, self.device, torch.float32)
        out, lse = attention.run(case.q, case.kv, case.plan)
        padded = torch.cat([case.q, torch.full_like(case.q[:3], torch.nan)])
        padded_out, padded_lse = self.ops.run(padded, case.k, case.v, case.plan.handle)
        torch.testing.assert_close(padded_out, torch.cat([out, torch.zeros_like(case.q[:3])]), rtol=0, atol=0)
        torch.testing.assert_close(padded_lse, torch.cat([lse, torch.full_like(lse[:3], -torch.inf)]), rtol=0, atol=0)

    def test_handles_of_what_is_gone(self):
        case = TorchCase(2, self.device, torch.float32)
        handle = case.plan.handle
        for wrong in (self.device.handle, 10**9):
            with self.assertRaisesRegex(ValueError, f"plan={wrong} is the handle of no Plan"):
                self.ops.run(case.q, case.k, case.v, wrong)
        case.plan = None
        with self.assertRaisesRegex(ValueError, f"plan={handle}"):
            self.ops.run(case.q, case.k, case.v, handle)

    def test_layers_compile_whole(self):
        # A decode step of a layer: the new token's KV is written, then read with all else.
        def layer(case, device, q, k, v, slots):
            case.kv.append(k, v, slots)
            out, lse = attention.run(q * 2, case.kv, case.plan)
            out, lse = attention.merge_states(device, [(out, lse), (out, lse)])
            return out + 1, lse

        for backend in ("aot_eager", "inductor"):
            with self.subTest(backend=backend):
                case = TorchCase(4, self.device, torch.float32, max_page_slots=4096)
                compiled = torch.compile(layer, fullgraph=True, backend=backend)
                pages, length, _ = case.branches[0]
                for step in range(3):  # the branch grows under the compiled function
                    k, v = torch.randn(2, 1, case.kv_heads, case.dim)
                    slots = torch.tensor([pages[(length - 1) // PAGE] * PAGE + (length - 1) % PAGE])
                    out, lse = compiled(case, self.device, case.q, k, v, slots)
                    self.assertTrue(torch.equal(case.k.flatten(0, 1)[slots], k))
                    expected_out, expected_lse = attention.run(case.q * 2, case.kv, case.plan)
                    torch.testing.assert_close(out, expected_out + 1, rtol=1e-5, atol=1e-5)
                    torch.testing.assert_close(lse, expected_lse + numpy.log(2), rtol=1e-5, atol=1e-5)
                    if length == len(pages) * PAGE:
                        break
                    length += 1
                    case.forest.set_length(0, length)
                    case.plan.update(case.forest)
                self.assertGreater(step, 0)


class Example(unittest.TestCase):
    def test_a_llama_says_what_transformers_says(self):
        folder = os.path.join(examples_test.ROOT, "tests", "data", "models", "llama-gqa")
        expected = load_file(os.path.join(folder, "expected.safetensors"))
        prompt = ",".join(map(str, expected["prompt"].tolist()))

        def generate(*args):
            lines = [line.split() for line in examples_test.run("llama.py", folder, prompt, *args).splitlines()]
            self.assertEqual([line[0] for line in lines], ["by_tree", "by_hydragen"])
            self.assertEqual(lines[0][1:], lines[1][1:])
            return [[int(token) for token in row.split(",")] for row in lines[0][1:]]

        greedy = expected["greedy"].tolist()
        self.assertEqual(generate("3", str(len(greedy)), "0"), [greedy] * 3)
        self.assertEqual(len(set(map(tuple, generate("4", "12", "0.8")))), 4)


if __name__ == "__main__":
    unittest.main()
