"""coppice_llm.flashinfer: the wrappers against torch's own attention, in float64, over random batches and cascades; what is refused."""

import inspect
import itertools
import math
import unittest

import torch_packages  # noqa: F401

import torch

import coppice_llm.flashinfer as flashinfer

TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def indptr(counts):
    return int32([0, *itertools.accumulate(counts)])


class Cache:
    """A paged cache of random KV, and the attention of rows over lists of tokens of it."""

    def __init__(self, seed, page_size, layout, dtype=torch.float32, kv_heads=2, group=2, head_dim=32, pages=400):
        self.random = torch.Generator().manual_seed(seed)
        self.page_size, self.layout, self.dtype, self.kv_heads, self.qo_heads, self.head_dim = page_size, layout, dtype, kv_heads, kv_heads * group, head_dim
        inner = (page_size, kv_heads) if layout == "NHD" else (kv_heads, page_size)
        self.kv = torch.randn(pages, 2, *inner, head_dim, generator=self.random).to(dtype)
        self.fresh = iter(torch.randperm(pages, generator=self.random).tolist())

    def integer(self, least, most):
        return int(torch.randint(least, most + 1, (), generator=self.random))

    def queries(self, rows):
        return torch.randn(rows, self.qo_heads, self.head_dim, generator=self.random).to(self.dtype)

    def table(self, length):
        return [next(self.fresh) for _ in range(-(-length // self.page_size))]

    def tokens(self, table, length):
        """[2, length, kv_heads, head_dim] in float64."""
        kv = self.kv if self.layout == "NHD" else self.kv.transpose(2, 3)
        return kv[table].transpose(0, 1).reshape(2, -1, self.kv_heads, self.head_dim)[:, :length].double()

    def shape(self):
        return self.qo_heads, self.kv_heads, self.head_dim, self.page_size

    def last(self, lengths):
        return int32([(length - 1) % self.page_size + 1 for length in lengths])

    def attend(self, q, kv, causal, window_left=-1, soft_cap=0.0):
        """out and base-2 LSE of the rows q, which follow each other at the end of kv where causal."""
        k, v = (each.repeat_interleave(self.qo_heads // self.kv_heads, 1) for each in kv)
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) / math.sqrt(self.head_dim)
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        place = torch.arange(len(q))[:, None] + len(k) - len(q)
        key = torch.arange(len(k))
        seen = (key <= place) | (not causal)
        if window_left >= 0:
            seen &= key >= place - window_left
        scores = scores.masked_fill(~seen, -math.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), (scores.logsumexp(-1) / math.log(2)).T


class Wrappers(unittest.TestCase):
    workspace = torch.empty(1024, dtype=torch.uint8)

    def check(self, said, expected, dtype=torch.float32):
        self.assertEqual((said[0].dtype, said[1].dtype), (dtype, torch.float32))
        for mine, exact in zip(said, expected):
            torch.testing.assert_close(mine.double(), exact, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])

    def test_decode(self):
        for seed, (layout, dtype, page_size, soft_cap, window_left) in enumerate(itertools.product(
                ("NHD", "HND"), TOLERANCES, (1, 16), (None, 5.0), (-1, 20))):
            with self.subTest(layout=layout, dtype=dtype, page_size=page_size, soft_cap=soft_cap, window_left=window_left):
                cache = Cache(seed, page_size, layout, dtype)
                front = cache.table(3 * page_size)  # which half of the requests begin with
                lengths = [cache.integer(1, 50) + (3 * page_size if i % 2 else 0) for i in range(6)]
                tables = [(front if i % 2 else []) + cache.table(length - (3 * page_size if i % 2 else 0)) for i, length in enumerate(lengths)]
                wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, layout)
                wrapper.plan(indptr(map(len, tables)), int32(sum(tables, [])), cache.last(lengths), *cache.shape(), q_data_type=dtype,
                             logits_soft_cap=soft_cap, window_left=window_left)
                q = cache.queries(6)
                parts = [cache.attend(q[i:i + 1], cache.tokens(*each), True, window_left, soft_cap) for i, each in enumerate(zip(tables, lengths))]
                expected = tuple(map(torch.cat, zip(*parts)))
                self.check(wrapper.run(q, cache.kv, return_lse=True), expected, dtype)
                out, lse = torch.empty_like(q), torch.empty(6, cache.qo_heads)
                wrapper.run(q, (cache.kv[:, 0], cache.kv[:, 1]), out=out, lse=lse, return_lse=True, k_scale=1.0, enable_pdl=True)
                self.check((out, lse), expected, dtype)

    def test_prefill(self):
        for seed, (layout, causal, window_left, page_size) in enumerate(itertools.product(("NHD", "HND"), (False, True), (-1, 9), (1, 8))):
            if window_left >= 0 and not causal:
                continue
            with self.subTest(layout=layout, causal=causal, window_left=window_left, page_size=page_size):
                cache = Cache(seed, page_size, layout)
                counts = [cache.integer(0, 7) for _ in range(5)]
                lengths = [count + cache.integer(1, 40) for count in counts]
                tables = [cache.table(length) for length in lengths]
                wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, layout)
                wrapper.plan(indptr(counts), indptr(map(len, tables)), int32(sum(tables, [])), cache.last(lengths), *cache.shape(), causal=causal,
                             q_data_type="float32", window_left=window_left, sm_scale=1 / math.sqrt(cache.head_dim))
                q = cache.queries(sum(counts))
                parts = [cache.attend(rows, cache.tokens(table, length), causal, window_left)
                         for rows, table, length in zip(q.split(counts), tables, lengths) if len(rows)]
                self.check(wrapper.run(q, cache.kv, return_lse=True), tuple(map(torch.cat, zip(*parts))))

    def cascade(self, seed, page_size, layout, causal, full_pages, nested):
        """Of three levels, all rows, groups of requests, requests: the plans that the wrapper makes of it."""
        cache = Cache(seed, page_size, layout)
        counts = [cache.integer(2, 4) for _ in range(7)]
        groups = [3, 4] if nested else [2, 5]
        middle = [sum(counts[:groups[0]]), sum(counts[groups[0]:])]
        if not nested:
            middle = [middle[0] + 1, middle[1] - 1]  # a request in two groups
        levels = [[sum(counts)], middle, counts]
        unit = page_size if full_pages else 1
        lengths = [[unit * cache.integer(1, 4) for _ in level] for level in levels[:2]] + [[count + cache.integer(0, 20) for count in counts]]
        tables = [[cache.table(length) for length in level] for level in lengths]
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(3, self.workspace, layout)
        wrapper.plan([indptr(level) for level in levels], [indptr(map(len, level)) for level in tables], [int32(sum(level, [])) for level in tables],
                     [cache.last(level) for level in lengths], *cache.shape(), causal=causal, q_data_type=torch.float32)
        q = cache.queries(sum(counts))
        expected = []
        for row in range(len(q)):
            seen = []
            for level, level_tables, level_lengths in zip(levels, tables, lengths):
                ends = list(itertools.accumulate(level))
                group = next(i for i, end in enumerate(ends) if row < end)
                hidden = ends[group] - 1 - row if causal and level is levels[-1] else 0
                seen.append(cache.tokens(level_tables[group], level_lengths[group] - hidden))
            expected.append(cache.attend(q[row:row + 1], torch.cat(seen, 1), False)[0])
        torch.testing.assert_close(wrapper.run(q, cache.kv).double(), torch.cat(expected), rtol=1e-4, atol=1e-4)
        return len(wrapper._plans)

    def test_cascades(self):
        for seed, (page_size, layout, causal, full_pages, nested) in enumerate(itertools.product(
                (1, 8), ("NHD", "HND"), (False, True), (True, False), (True, False))):
            if page_size == 1 and not full_pages:
                continue
            with self.subTest(page_size=page_size, layout=layout, causal=causal, full_pages=full_pages, nested=nested):
                self.assertEqual(self.cascade(seed, page_size, layout, causal, full_pages, nested), 1 if nested and full_pages else 3)

    def test_cascades_of_flashinfers_own_tests(self):
        """The shapes of its tests/attention/test_shared_prefix_kernels.py, those of every second head_dim and the longest prefix left out, in float16,
        its KV written by append_paged_kv_cache, against the same batch without levels and float64."""
        shapes = itertools.product((False, True), (12, 17), (37, 17), (128, 512), (8,), (128,), (1, 16))
        for seed, (appends, batch, unique, shared, heads, dim, page) in enumerate(shapes):
            with self.subTest(appends=appends, batch=batch, unique=unique, shared=shared, heads=heads, dim=dim, page=page):
                shared_pages, unique_pages = shared // page, -(-unique // page)
                cache = Cache(seed, page, "NHD", torch.float16, heads, 1, dim, shared_pages + batch * unique_pages)
                cache.kv.zero_()
                rows = unique if appends else 1
                levels = [([batch * rows], [shared_pages], list(range(shared_pages)), [shared]),
                          ([rows] * batch, [unique_pages] * batch, list(range(shared_pages, len(cache.kv))), [unique] * batch)]
                written = []
                for _, pages, indices, lengths in levels:
                    kv = torch.randn(2, sum(lengths), heads, dim, generator=cache.random).half()
                    written.append(kv.double().view(2, len(lengths), lengths[0], heads, dim))
                    lens = flashinfer.get_seq_lens(indptr(pages), cache.last(lengths), page)
                    self.assertEqual(lens.tolist(), lengths)
                    places = flashinfer.get_batch_indices_positions(indptr(lengths), lens, sum(lengths))
                    flashinfer.append_paged_kv_cache(*kv, *places, cache.kv, int32(indices), indptr(pages), cache.last(lengths))
                cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, self.workspace, "NHD")
                arrays = list(zip(*((indptr(counts), indptr(pages), int32(indices), cache.last(lengths)) for counts, pages, indices, lengths in levels)))
                cascade.plan(*map(list, arrays), heads, heads, dim, page)
                q = cache.queries(batch * rows)
                out = cascade.run(q, cache.kv)
                expected = torch.cat([cache.attend(q[i * rows:(i + 1) * rows], torch.cat([written[0][:, 0], written[1][:, i]], 1), False)[0] for i in range(batch)])
                torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-3)
                whole = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD")
                tables = [levels[0][2] + levels[1][2][i * unique_pages:(i + 1) * unique_pages] for i in range(batch)]
                whole.plan(indptr([rows] * batch), indptr(map(len, tables)), int32(sum(tables, [])), cache.last([unique] * batch), heads, heads, dim, page)
                torch.testing.assert_close(whole.run(q, cache.kv), out, rtol=1e-3, atol=1e-3)

    def test_masks_of_any_stride(self):
        for dtype, stride in itertools.product((torch.float16, torch.bfloat16), (0, 1, 2, 3)):
            storage = torch.arange(1 + 17 * max(stride, 1)) % 2 == 0
            mask = storage[1:2].expand(17) if stride == 0 else storage[1::stride]
            v, s = torch.zeros(17, 2, 64, dtype=dtype), torch.zeros(17, 2)
            flashinfer.merge_state_in_place(v, s, torch.ones_like(v), torch.zeros_like(s), mask)
            torch.testing.assert_close(v, (mask.to(dtype) * 0.5)[:, None, None].expand_as(v), rtol=0, atol=0)
            torch.testing.assert_close(s, mask.float()[:, None].expand_as(s), rtol=1e-6, atol=1e-6)

    def test_plans_of_graphs_stay_where_they_are(self):
        # A graph holds the operator's arguments: tensors, and the handle of a plan that each plan(...) changes.
        cache = Cache(7, 16, "NHD")
        front = cache.table(64)
        buffers = {"paged_kv_indptr_buffer": torch.empty(9, dtype=torch.int32), "paged_kv_indices_buffer": torch.empty(64, dtype=torch.int32)}
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", True, **buffers)
        self.assertTrue(wrapper.is_cuda_graph_enabled)
        handles = set()
        for requests in (8, 3, 8):
            lengths = [64 + cache.integer(1, 40) for _ in range(requests)]
            tables = [front + cache.table(length - 64) for length in lengths]
            wrapper.plan(indptr(map(len, tables)), int32(sum(tables, [])), cache.last(lengths), *cache.shape(), q_data_type=torch.float32)
            handles.add(wrapper._plans[0].handle)
            q = cache.queries(requests)
            parts = [cache.attend(q[i:i + 1], cache.tokens(*each), True) for i, each in enumerate(zip(tables, lengths))]
            self.check(wrapper.run_return_lse(q, cache.kv), tuple(map(torch.cat, zip(*parts))))
        self.assertEqual(len(handles), 1)
        one = ([0, *range(1, 10)], list(range(9)), [1] * 9)
        with self.assertRaisesRegex(ValueError, "has 9 requests, expected at most 8|rows=9"):
            wrapper.plan(*map(int32, one), *cache.shape(), q_data_type=torch.float32)
        with self.assertRaisesRegex(ValueError, "has 65 pages, expected at most 64"):
            wrapper.plan(int32([0, 65]), int32(range(65)), int32([1]), *cache.shape(), q_data_type=torch.float32)
        with self.assertRaisesRegex(ValueError, "num_kv_heads=1: the first plan.* had 2"):
            wrapper.plan(int32([0, 1]), int32([0]), int32([1]), 4, 1, 32, 16, q_data_type=torch.float32)
        with self.assertRaisesRegex(ValueError, "paged_kv_indptr_buffer=None: use_cuda_graph=True needs it"):
            flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, use_cuda_graph=True)

    def test_cascades_of_graphs(self):
        cache = Cache(8, 8, "HND")
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, self.workspace, "HND", True, [torch.empty(2), torch.empty(7)], None, [torch.empty(40), torch.empty(60)])
        for requests in (6, 4):
            lengths = [[cache.integer(9, 60)], [cache.integer(1, 30) for _ in range(requests)]]
            tables = [[cache.table(length) for length in level] for level in lengths]
            wrapper.plan([int32([0, requests]), int32(range(requests + 1))], [indptr(map(len, level)) for level in tables], [int32(sum(level, [])) for level in tables],
                         [cache.last(level) for level in lengths], *cache.shape(), q_data_type=torch.float32)
            q = cache.queries(requests)
            parts = [cache.attend(q[i:i + 1], torch.cat([cache.tokens(tables[0][0], lengths[0][0]), cache.tokens(tables[1][i], lengths[1][i])], 1), False)[0]
                     for i in range(requests)]
            torch.testing.assert_close(wrapper.run(q, cache.kv).double(), torch.cat(parts), rtol=1e-4, atol=1e-4)
            self.assertEqual(len(wrapper._plans), 2)

    def test_states_merge(self):
        cache = Cache(0, 8, "NHD")
        q, kv = cache.queries(5), cache.tokens(cache.table(90), 90)
        parts = [cache.attend(q, part, False) for part in kv.split([20, 1, 69], 1)]
        parts = [(out.float(), lse.float()) for out, lse in parts]
        whole = cache.attend(q, kv, False)
        self.check(flashinfer.merge_states(*(torch.stack(each, 1) for each in zip(*parts))), whole)
        self.check(flashinfer.merge_state(*flashinfer.merge_state(*parts[0], *parts[1]), *parts[2]), whole)
        v, s = parts[0][0].clone(), parts[0][1].clone()
        mask = torch.tensor([True, False, True, True, False])
        flashinfer.merge_state_in_place(v, s, *parts[1], mask)
        merged = flashinfer.merge_state(*parts[0], *parts[1])
        torch.testing.assert_close(v, torch.where(mask[:, None, None], merged[0], parts[0][0]), rtol=0, atol=0)
        torch.testing.assert_close(s, torch.where(mask[:, None], merged[1], parts[0][1]), rtol=0, atol=0)

    def test_what_shares_pages_reads_them_once(self):
        cache = Cache(0, 16, "NHD", group=4)
        front = cache.table(16 * 64)
        tables = [front + cache.table(16) for _ in range(32)]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace)
        wrapper.plan(indptr(map(len, tables)), int32(sum(tables, [])), cache.last([16 * 65] * 32), *cache.shape(), q_data_type=torch.float32)
        read = wrapper._plans[0].stats()
        self.assertLess(read["kv_tokens_read"], read["kv_tokens_read_unshared"] / 8)

    def test_compiles_whole(self):
        cache = Cache(3, 16, "NHD")
        table = cache.table(40)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace)
        wrapper.plan(int32([0, len(table)]), int32(table), cache.last([40]), *cache.shape(), q_data_type=torch.float32)
        q = cache.queries(1)
        compiled = torch.compile(lambda q, kv: wrapper.run(q, kv, return_lse=True), fullgraph=True, backend="aot_eager")
        for mine, eager in zip(compiled(q, cache.kv), wrapper.run(q, cache.kv, return_lse=True)):
            torch.testing.assert_close(mine, eager, rtol=0, atol=0)


class Refusals(unittest.TestCase):
    workspace = torch.empty(1024, dtype=torch.uint8)

    def test_what_is_lacking_is_named(self):
        decode, prefill, cascade = (flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace), flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace),
                                    flashinfer.MultiLevelCascadeAttentionWrapper(1, self.workspace))
        pages = (int32([0, 1]), int32([0]), int32([3]))
        shape = (2, 1, 32, 16)
        rows = int32([0, 2])
        by_level = [[each] for each in (rows, *pages)]
        q, kv = torch.zeros(2, 2, 32, dtype=torch.float16), torch.zeros(1, 2, 16, 1, 32, dtype=torch.float16)
        prefill.plan(rows, *pages, *shape)
        calls = [
            ("backend", lambda: flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, backend="cudnn")),
            ("jit_args", lambda: flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, jit_args=[1])),
            ("pos_encoding_mode", lambda: decode.plan(*pages, *shape, pos_encoding_mode="ROPE_LLAMA")),
            ("rope_theta", lambda: cascade.plan(*by_level, *shape, rope_theta=1e4)),
            ("custom_mask", lambda: prefill.plan(rows, *pages, *shape, custom_mask=torch.ones(6, dtype=torch.bool))),
            ("head_dim_vo", lambda: prefill.plan(rows, *pages, *shape, head_dim_vo=64)),
            ("window_left", lambda: prefill.plan(rows, *pages, *shape, window_left=1)),
            ("fixed_split_size", lambda: prefill.plan(rows, *pages, *shape, fixed_split_size=4)),
            ("block_tables", lambda: decode.plan(*pages, *shape, block_tables=int32([[0]]))),
            ("q_data_type", lambda: decode.plan(*pages, *shape, q_data_type=torch.float8_e4m3fn)),
            ("o_data_type", lambda: decode.plan(*pages, *shape, o_data_type="float32")),
            ("o_data_type", lambda: prefill.plan(rows, *pages, *shape, q_data_type="bfloat16", o_data_type=torch.float16)),
            ("sm_scale=0", lambda: cascade.plan(*by_level, *shape, sm_scale=0.0)),
            ("queries", lambda: prefill.plan(int32([0, 4]), *pages, *shape, causal=True)),
            ("sinks", lambda: prefill.run(q, kv, sinks=torch.zeros(2))),
            ("k_scale", lambda: prefill.run(q, kv, k_scale=0.5)),
        ]
        for name, call in calls:
            with self.subTest(name=name), self.assertRaisesRegex(NotImplementedError, name):
                call()
        prefill.plan(rows, *pages, *shape, head_dim_vo=32, seq_lens=None, non_blocking=False)
        decode.plan(*pages, *shape, o_data_type=torch.float16, logits_soft_cap=-1.0)  # FlashInfer's soft cap is positive, else there is none

    def test_mistakes_are_named(self):
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace)
        q, kv = torch.zeros(1, 2, 32, dtype=torch.float16), torch.zeros(1, 2, 16, 1, 32, dtype=torch.float16)
        calls = [
            ("plan", lambda: decode.run(q, kv)),
            ("kv_layout='NDH'", lambda: flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NDH")),
            ("last_page_len\\[0\\]=17", lambda: decode.plan(int32([0, 1]), int32([0]), int32([17]), 2, 1, 32, 16)),
            ("kv_indptr=\\[0, 2, 1\\]", lambda: decode.plan(int32([0, 2, 1]), int32([0, 1]), int32([1, 1]), 2, 1, 32, 16)),
            ("kv_indices", lambda: decode.plan(int32([0, 2]), int32([0]), int32([1]), 2, 1, 32, 16)),
            ("last_page_len", lambda: decode.plan(int32([0, 1]), int32([0]), int32([1, 1]), 2, 1, 32, 16)),
            ("paged_kv_indptr_arr has 1", lambda: flashinfer.MultiLevelCascadeAttentionWrapper(2, self.workspace).plan(
                [int32([0, 1])] * 2, [int32([0, 1])], [int32([0])] * 2, [int32([1])] * 2, 2, 1, 32, 16)),
        ]
        for words, call in calls:
            with self.subTest(words=words), self.assertRaisesRegex(ValueError, words):
                call()

    def test_arguments_stand_where_those_of_flashinfer_do(self):
        # The positional parameters of FlashInfer's API, in its order.
        expected = {
            (flashinfer.BatchDecodeWithPagedKVCacheWrapper, "plan"): "indptr indices last_page_len num_qo_heads num_kv_heads head_dim page_size "
                "pos_encoding_mode window_left logits_soft_cap q_data_type kv_data_type o_data_type data_type sm_scale rope_scale rope_theta",
            (flashinfer.BatchPrefillWithPagedKVCacheWrapper, "plan"): "qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len num_qo_heads "
                "num_kv_heads head_dim_qk page_size head_dim_vo custom_mask packed_custom_mask causal pos_encoding_mode use_fp16_qk_reduction sm_scale "
                "window_left logits_soft_cap rope_scale rope_theta q_data_type kv_data_type o_data_type non_blocking",
            (flashinfer.MultiLevelCascadeAttentionWrapper, "plan"): "qo_indptr_arr paged_kv_indptr_arr paged_kv_indices_arr paged_kv_last_page_len "
                "num_qo_heads num_kv_heads head_dim page_size causal pos_encoding_mode use_fp16_qk_reduction sm_scale window_left logits_soft_cap "
                "rope_scale rope_theta q_data_type kv_data_type",
        }
        for (kind, method), names in expected.items():
            self.assertEqual(list(inspect.signature(getattr(kind, method)).parameters)[1:len(names.split()) + 1], names.split())


if __name__ == "__main__":
    unittest.main()
