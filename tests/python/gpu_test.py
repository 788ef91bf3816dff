"""The Python package on a GPU: attention over torch's tensors against its SDPA in float64, on the caller's stream, in CUDA graphs and
under torch.compile; FlashInfer's wrappers over the shapes of its own tests of cascades; tensors of CuPy and JAX; updates of weights from
the GPU. Skips itself where torch or a GPU is missing.

    PYTHONPATH=<a build with COPPICE_CUDA=ON>/python python3 tests/python/gpu_test.py
"""

import gc
import importlib.util
import itertools
import os
import sys
import time
import unittest

for name in ("torch", "coppice_llm"):
    if importlib.util.find_spec(name) is None:
        print(f"skipped: no {name}")
        sys.exit(77)

import torch

if not torch.cuda.is_available():
    print("skipped: no GPU that torch sees")
    sys.exit(77)

import numpy
from attention_test import PAGE
from torch_case import TOLERANCES, TorchCase

from coppice_llm import LLM, SamplingParams, attention

GPU = torch.device("cuda", 0)
DTYPES = (torch.bfloat16, torch.float16)


def taken_beside_torch():
    """Bytes of the GPU that are in use, but for those that torch's allocator keeps, which its own checks take."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def setUpModule():
    try:
        attention.Device("cuda")
    except RuntimeError as error:  # a build for CPUs; NotImplementedError is one too
        raise unittest.SkipTest(f"{error}") from None


class Attention(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.device = attention.Device("cuda")

    def test_random_forests_are_as_sdpa_has_them(self):
        options = [{}, {"force_sharing": True}, {"share": False}, {"deterministic": True}]
        for seed in range(64):
            dtype = DTYPES[seed % 2]
            with self.subTest(seed=seed, dtype=dtype):
                case = TorchCase(seed, self.device, dtype, ("NHD", "HND")[seed // 2 % 2], GPU, **options[seed // 4 % 4])
                case.check(self, attention.run(case.q, case.kv, case.plan))

    def test_windows_and_soft_caps(self):
        for seed, options in itertools.product(range(6), ({"window": 20}, {"soft_cap": 5.0, "force_sharing": True})):
            with self.subTest(seed=seed, options=options):
                case = TorchCase(seed, self.device, torch.float16, "NHD", GPU, **options)
                out, lse = attention.run(case.q, case.kv, case.plan)
                case.q, case.k, case.v = (each.float().cpu().numpy() for each in (case.q, case.k, case.v))
                for mine, exact in zip((out, lse), case.expected()):
                    numpy.testing.assert_allclose(mine.float().cpu().numpy(), exact, rtol=4e-3, atol=4e-3)

    def test_work_is_put_into_the_callers_stream(self):
        """q, KV and the plan are written by streams that are far behind the host; a wrong stream reads what was there before."""
        for seed in range(4):
            case = TorchCase(seed, self.device, torch.bfloat16, "NHD", GPU, max_page_slots=4096)
            expected = attention.run(case.q, case.kv, case.plan)[0].clone()
            q, k, v = case.q.clone(), case.k.clone(), case.v.clone()
            big = torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16)
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for tensor in (case.q, case.k, case.v):
                    tensor.zero_()
                case.plan.update(attention.Forest.of_page_tables(*zip(*case.branches), page_size=PAGE))  # as many queries
                for _ in range(20):
                    big @ big
                for tensor, was in ((case.q, q), (case.k, k), (case.v, v)):
                    tensor.copy_(was)
                out = attention.run(case.q, case.kv, case.plan)[0]
            stream.synchronize()
            torch.testing.assert_close(out.float(), expected.float(), rtol=3e-2, atol=3e-2)

    def test_one_graph_serves_changing_forests(self):
        """A step of a layer, captured: the new tokens' KV is written where slots on the GPU say, and read with all else. Replays take
        nothing of the GPU's memory."""
        for seed in range(6):
            with self.subTest(seed=seed):
                case = TorchCase(seed, self.device, DTYPES[seed % 2], "NHD", GPU, max_page_slots=4096, max_nodes=64, max_branches=64, max_queries=64)
                rows = len(case.q)
                k, v = torch.randn(2, rows, case.kv_heads, case.dim, device=GPU).to(case.q.dtype)
                slots = torch.full((rows,), -1, dtype=torch.int64, device=GPU)
                states = [(case.q.clone(), torch.zeros(rows, case.qo_heads, device=GPU))] * 2

                def layer():
                    case.kv.append(k, v, slots)
                    out, lse = attention.run(case.q, case.kv, case.plan)
                    return out, lse, *attention.merge_states(self.device, [(out, lse), *states])

                torch.cuda.synchronize()
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    layer()
                    stream.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=stream):
                        out, lse, *merged = layer()
                    torch.cuda.synchronize()
                    for step in range(6):
                        if step == 1:  # the first one's checks have loaded torch's kernels
                            before = taken_beside_torch()
                        case.branches = [case.branches[i] for i in torch.randperm(len(case.branches)).tolist()]
                        ends = list(itertools.accumulate((queries for _, _, queries in case.branches), initial=0))
                        case.forest = attention.Forest.of_page_tables(*zip(*case.branches), page_size=PAGE)
                        case.plan.update(case.forest)
                        case.q.copy_(torch.randn_like(case.q))
                        k.copy_(torch.randn_like(k))
                        written = [pages[(length - 1) // PAGE] * PAGE + (length - 1) % PAGE for pages, length, _ in case.branches]
                        slots.fill_(-1)
                        slots[[end - 1 for end in ends[1:]]] = torch.tensor(written, device=GPU)
                        graph.replay()
                        stream.synchronize()
                        case.check(self, (out, lse))
                        for slot, end in zip(written, ends[1:]):
                            self.assertTrue(torch.equal(case.k.flatten(0, 1)[slot], k[end - 1]))
                        weights = torch.softmax(torch.stack([lse, *(each for _, each in states)]), 0)
                        expected = (weights[..., None] * torch.stack([out, *(each for each, _ in states)]).float()).sum(0)
                        torch.testing.assert_close(merged[0].float(), expected, rtol=3e-2, atol=3e-2)
                    self.assertEqual(taken_beside_torch(), before)

    def test_lists_of_the_host_are_refused_under_capture(self):
        case = TorchCase(1, self.device, torch.bfloat16, "NHD", GPU)
        rows = torch.zeros(1, case.kv_heads, case.dim, device=GPU, dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), self.assertRaisesRegex(RuntimeError, "captured.*host memory"):
            case.kv.append(rows, rows, [3])

    def test_wrong_devices_are_named(self):
        case = TorchCase(1, self.device, torch.bfloat16, "NHD", GPU)
        for name, call in (("q", lambda: attention.run(case.q.cpu(), case.kv, case.plan)), ("out", lambda: attention.run(case.q, case.kv, case.plan, out=case.q.cpu())),
                           ("k", lambda: attention.KvPool(self.device, case.k.cpu(), case.v)),
                           ("page_tables", lambda: attention.Forest.of_page_tables(torch.zeros(1, 1, dtype=torch.int32, device=GPU), [1]))):
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, f"{name} is on (another device|a GPU)"):
                call()
        with self.assertRaisesRegex(NotImplementedError, "f32"):
            attention.Plan(self.device, case.forest, num_qo_heads=2, num_kv_heads=1, head_dim=64, dtype="f32")

    def test_calls_do_not_grow(self):
        case = TorchCase(4, self.device, torch.bfloat16, "NHD", GPU)
        out, lse = attention.run(case.q, case.kv, case.plan)
        ops = attention.torch_ops()

        def repeat(count):
            for i in range(count):
                attention.run(case.q, case.kv, case.plan, out, lse)
                case.plan.update(case.forest)
                if i % 10 == 0:
                    ops.run(case.q, case.k, case.v, case.plan.handle)
            torch.cuda.synchronize()
            gc.collect()
            return torch.cuda.mem_get_info()[0]

        before = repeat(500)
        self.assertGreaterEqual(repeat(int(os.environ.get("COPPICE_CALLS", 10000))), before)

    def test_time_of_the_host(self):
        case = TorchCase(4, self.device, torch.bfloat16, "NHD", GPU, max_page_slots=4096)
        pages, length, queries = case.branches[0]
        out, lse = attention.run(case.q, case.kv, case.plan)
        best = {"update": 1.0, "run": 1.0, "operator": 1.0}
        for i in range(300):
            torch.cuda.synchronize()
            case.forest.set_length(0, length + i % 2)
            begin = time.perf_counter()
            case.plan.update(case.forest)
            updated = time.perf_counter()
            attention.run(case.q, case.kv, case.plan, out, lse)
            ran = time.perf_counter()
            torch.ops.coppice.run(case.q, case.k, case.v, case.plan.handle)
            ends = (updated - begin, ran - updated, time.perf_counter() - ran)
            best = {name: min(was, now) for (name, was), now in zip(best.items(), ends)}
        print("\nhost, us:", {name: round(seconds * 1e6, 1) for name, seconds in best.items()})


class Compiled(unittest.TestCase):
    def test_layers_compile_whole(self):
        device = attention.Device("cuda")

        def layer(case, q, k, v, slots):
            case.kv.append(k, v, slots)
            out, lse = attention.run(q * 2, case.kv, case.plan)
            out, lse = attention.merge_states(device, [(out, lse), (out, lse)])
            return out + 1, lse

        for options in ({"backend": "aot_eager"}, {"backend": "inductor"}, {"backend": "inductor", "mode": "reduce-overhead"}):
            with self.subTest(**options):
                torch.compiler.reset()
                case = TorchCase(4, device, torch.bfloat16, "NHD", GPU, max_page_slots=4096)
                compiled = torch.compile(layer, fullgraph=True, **options)
                pages, length, queries = case.branches[0]
                for _ in range(4):  # the branch grows under the compiled function
                    k, v = torch.randn(2, 1, case.kv_heads, case.dim, device=GPU, dtype=torch.bfloat16)
                    slots = torch.tensor([pages[(length - 1) // PAGE] * PAGE + (length - 1) % PAGE], device=GPU)
                    torch.compiler.cudagraph_mark_step_begin()
                    out, lse = compiled(case, case.q, k, v, slots)
                    self.assertTrue(torch.equal(case.k.flatten(0, 1)[slots], k))
                    expected_out, expected_lse = attention.run(case.q * 2, case.kv, case.plan)
                    torch.testing.assert_close(out, expected_out + 1, rtol=2e-2, atol=2e-2)
                    torch.testing.assert_close(lse, expected_lse + numpy.log(2), rtol=1e-4, atol=1e-4)
                    if length == len(pages) * PAGE:
                        break
                    length += 1
                    case.forest.set_length(0, length)
                    case.plan.update(case.forest)

    def test_torch_accepts_the_operators(self):
        device = attention.Device("cuda")
        case = TorchCase(1, device, torch.bfloat16, "HND", GPU)
        ops = attention.torch_ops()
        out, lse = ops.run(case.q, case.k, case.v, case.plan.handle, True)
        new_k, new_v = torch.randn(2, 2, case.kv_heads, case.dim, device=GPU).to(torch.bfloat16)
        torch.library.opcheck(ops.run, (case.q, case.k, case.v, case.plan.handle, True))
        torch.library.opcheck(ops.merge_states, ([out, out], [lse, lse], device.handle))
        torch.library.opcheck(ops.append_kv, (case.k, case.v, new_k, new_v, torch.tensor([3, -1], device=GPU), device.handle, True))


class FlashInfer(unittest.TestCase):
    """The shapes of FlashInfer's tests/attention/test_shared_prefix_kernels.py and test_cascade_mask.py."""

    @classmethod
    def setUpClass(cls):
        import coppice_llm.flashinfer as flashinfer

        cls.flashinfer = flashinfer
        cls.workspace = torch.empty(1024, dtype=torch.uint8, device=GPU)

    def test_cascades(self):
        def int32(values):
            return torch.tensor(values, dtype=torch.int32, device=GPU)

        shapes = itertools.product(("decode", "append"), (12, 17), (37, 17), (128, 512, 2048), (8, 16), (128, 256), (1, 16))
        for stage, batch, unique, shared, heads, dim, page in shapes:
            with self.subTest(stage=stage, batch=batch, unique=unique, shared=shared, heads=heads, dim=dim, page=page):
                rows = unique if stage == "append" else 1
                shared_pages, unique_pages = shared // page, -(-unique // page)
                kv = torch.randn(shared_pages + batch * unique_pages, 2, page, heads, dim, device=GPU, dtype=torch.float16)
                q = torch.randn(batch * rows, heads, dim, device=GPU, dtype=torch.float16)
                wrapper = self.flashinfer.MultiLevelCascadeAttentionWrapper(2, self.workspace, "NHD")
                wrapper.plan([int32([0, batch * rows]), int32([i * rows for i in range(batch + 1)])],
                             [int32([0, shared_pages]), int32([i * unique_pages for i in range(batch + 1)])],
                             [int32(range(shared_pages)), int32(range(shared_pages, len(kv)))],
                             [int32([page]), int32([(unique - 1) % page + 1] * batch)], heads, heads, dim, page)
                out = wrapper.run(q, kv)
                common = kv[:shared_pages].transpose(0, 1).flatten(1, 2)[:, None].expand(-1, batch, -1, -1, -1)
                own = kv[shared_pages:].transpose(0, 1).reshape(2, batch, unique_pages * page, heads, dim)[:, :, :unique]
                k, v = torch.cat([common, own], 2).float().transpose(2, 3)
                exact = torch.nn.functional.scaled_dot_product_attention(q.float().view(batch, rows, heads, dim).transpose(1, 2), k, v)
                torch.testing.assert_close(out.float(), exact.transpose(1, 2).flatten(0, 1), rtol=1e-3, atol=1e-3)

    def test_one_graph_serves_plans_to_come(self):
        heads, dim, page, most = 8, 64, 16, 24
        kv = torch.randn(512, 2, page, heads, dim, device=GPU, dtype=torch.bfloat16)
        buffers = {"paged_kv_indptr_buffer": torch.empty(most + 1, dtype=torch.int32), "paged_kv_indices_buffer": torch.empty(most * 20, dtype=torch.int32)}
        wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", True, **buffers)
        q = torch.empty(most, heads, dim, device=GPU, dtype=torch.bfloat16)
        graph, random = None, torch.Generator().manual_seed(0)
        for requests in (24, 24, 7, 16, 24):
            own = torch.randint(1, 8, (requests,), generator=random).tolist()
            pages = iter(torch.randperm(512, generator=random).tolist())
            shared = [next(pages) for _ in range(12)]
            tables = [shared + [next(pages) for _ in range(count)] for count in own]
            last = torch.randint(1, page + 1, (requests,), generator=random).tolist()
            ends = list(itertools.accumulate(map(len, tables), initial=0))
            wrapper.plan(*(torch.tensor(each, dtype=torch.int32) for each in (ends, sum(tables, []), last)), heads, heads, dim, page, q_data_type=torch.bfloat16)
            q.copy_(torch.randn(q.shape, generator=random))
            if graph is None:
                wrapper.run(q, kv)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out, lse = wrapper.run(q, kv, return_lse=True)
            graph.replay()
            for i, (table, count) in enumerate(zip(tables, last)):
                k, v = kv[table].transpose(0, 1).flatten(1, 2)[:, :(len(table) - 1) * page + count].double().transpose(1, 2)
                scores = (k @ q[i, :, :, None].double())[..., 0] / dim**0.5
                torch.testing.assert_close(out[i].double(), (scores.softmax(-1)[:, None] @ v)[:, 0], rtol=3e-2, atol=3e-2)
                torch.testing.assert_close(lse[i].double(), scores.logsumexp(-1) / numpy.log(2), rtol=1e-3, atol=1e-3)

    def test_masks_of_any_stride_in_graphs(self):
        for dtype, stride, pattern in itertools.product(DTYPES, (0, 1, 2, 3), ("all", "none", "alternating")):
            if stride == 0 and pattern == "alternating":
                continue
            with self.subTest(dtype=dtype, stride=stride, pattern=pattern):
                rows = 17
                storage = torch.full((1 + rows * max(stride, 1),), pattern == "none", dtype=torch.bool, device=GPU)
                mask = storage[1:2].expand(rows) if stride == 0 else storage[1::stride]
                if stride == 0:
                    storage[1] = pattern == "all"
                else:
                    mask.copy_(torch.arange(rows, device=GPU) % 2 == 0 if pattern == "alternating" else torch.full((rows,), pattern == "all", device=GPU))
                v, s = torch.zeros(rows, 2, 64, dtype=dtype, device=GPU), torch.zeros(rows, 2, device=GPU)
                other_v, other_s = torch.ones_like(v), torch.zeros_like(s)
                self.flashinfer.merge_state_in_place(v, s, other_v, other_s, mask)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.flashinfer.merge_state_in_place(v, s, other_v, other_s, mask)
                for _ in range(2):
                    v.zero_()
                    s.zero_()
                    graph.replay()
                    torch.testing.assert_close(v, (mask.to(dtype) * 0.5)[:, None, None].expand_as(v), rtol=0, atol=0)
                    torch.testing.assert_close(s, mask.to(s.dtype)[:, None].expand_as(s), rtol=1e-6, atol=1e-6)
                    storage.logical_not_()  # replays read the mask as it is then


@unittest.skipIf(importlib.util.find_spec("cupy") is None, "no CuPy")
class CuPy(unittest.TestCase):
    def test_random_forests_on_its_stream(self):
        import cupy

        device = attention.Device("cuda")
        for seed in range(8):
            case = TorchCase(seed, device, torch.float16, "NHD", GPU)
            q, k, v = (cupy.asarray(each.cpu().numpy()) for each in (case.q, case.k, case.v))
            with cupy.cuda.Stream(non_blocking=True) as stream:
                out, lse = attention.run(q, attention.KvPool(device, k, v), case.plan)
                merged = attention.merge_states(device, [(out, lse), (out, lse)])
            stream.synchronize()
            self.assertIsInstance(out, cupy.ndarray)
            case.check(self, (torch.from_dlpack(out), torch.from_dlpack(lse)))
            cupy.testing.assert_allclose(merged[1], lse + numpy.log(2), rtol=1e-4, atol=1e-4)


@unittest.skipIf(importlib.util.find_spec("jax") is None, "no JAX")
class Jax(unittest.TestCase):
    def test_random_forests(self):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        if jax.default_backend() != "gpu":
            self.skipTest("JAX sees no GPU")
        device = attention.Device("cuda")
        for seed in range(8):
            case = TorchCase(seed, device, torch.bfloat16, "HND", GPU)
            q, k, v = (jax.dlpack.from_dlpack(each) for each in (case.q, case.k, case.v))
            out, lse = attention.run(q, attention.KvPool(device, k, v, "HND"), case.plan)
            self.assertIsInstance(out, jax.Array)
            case.check(self, (torch.from_dlpack(out), torch.from_dlpack(lse)))


class Engine(unittest.TestCase):
    def test_weights_come_from_the_gpu(self):
        from safetensors.torch import load_file

        folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "models", "llama-gqa")
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        params = SamplingParams(n=2, max_tokens=8, seed=1, ignore_eos=True)
        with LLM(folder, device=["cuda:0"], dtype="bf16", weights="bf16", kv_cache_bytes=16 << 20) as llm:
            before = [s.token_ids for s in llm.generate([1, 5, 9], params)]
            self.assertEqual(llm.update_weights({name: tensor.to(GPU, torch.bfloat16).flip(-1).contiguous() for name, tensor in tensors.items()}), 1)
            self.assertNotEqual([s.token_ids for s in llm.generate([1, 5, 9], params)], before)
            llm.sleep(1)
            llm.wake()
            self.assertEqual(llm.update_weights({name: tensor.to(GPU) for name, tensor in tensors.items()}), 2)
            self.assertEqual([s.token_ids for s in llm.generate([1, 5, 9], params)], before)


if __name__ == "__main__":
    print("torch", torch.__version__, torch.cuda.get_device_name(), {str(each): tolerance for each, tolerance in TOLERANCES.items()})
    unittest.main()
