"""coppice_llm.attention: random forests against float64, states, and what callers do wrong."""

import os
import resource
import unittest

import numpy

from coppice_llm import attention

PAGE = 8


class Case:
    """A random forest of two to three levels over one pool, and its queries."""

    def __init__(self, seed, device, layout="NHD", **options):
        random = numpy.random.default_rng(seed)
        self.kv_heads = int(random.choice([1, 2]))
        self.qo_heads = self.kv_heads * int(random.choice([1, 4]))
        self.dim = int(random.choice([32, 64]))
        self.options = options
        self.forest = attention.Forest(page_size=PAGE)
        self.branches = []  # pages, length, queries
        fresh = iter(random.permutation(512).tolist())
        for _ in range(random.integers(1, 3)):
            self._grow(random, fresh, None, 0, [], int(random.integers(1, 3)))
        shape = (512, PAGE, self.kv_heads, self.dim) if layout == "NHD" else (512, self.kv_heads, PAGE, self.dim)
        self.k, self.v = (random.standard_normal(shape).astype(numpy.float32) for _ in range(2))
        self.layout = layout
        self.rows = sum(queries for _, _, queries in self.branches)
        self.q = random.standard_normal((self.rows, self.qo_heads, self.dim)).astype(numpy.float32)
        self.kv = attention.KvPool(device, self.k, self.v, layout)
        self.plan = attention.Plan(device, self.forest, num_qo_heads=self.qo_heads, num_kv_heads=self.kv_heads, head_dim=self.dim, dtype="f32", **options)

    def _grow(self, random, fresh, parent, begin, pages, levels):
        if levels == 0:
            queries = int(random.integers(1, 4))
            length = begin + queries + int(random.integers(0, 30))
            own = pages + [next(fresh) for _ in range(-(-length // PAGE) - len(pages))]
            self.forest.add_branch(self.forest.add_node(parent, begin), length, own, queries)
            self.branches.append((own, length, queries))
            return
        end = begin + PAGE * int(random.integers(1, 6))
        node = self.forest.add_node(parent, begin, end)
        own = pages + [next(fresh) for _ in range((end - begin) // PAGE)]
        for _ in range(random.integers(2, 5)):
            self._grow(random, fresh, node, end, own, levels - 1)

    def expected(self):
        """out and lse in float64, a branch at a time."""
        outs, lses = [], []
        k, v = (pool if self.layout == "NHD" else pool.transpose(0, 2, 1, 3) for pool in (self.k, self.v))
        row = 0
        for pages, length, queries in self.branches:
            keys, values = (pool[pages].reshape(-1, self.kv_heads, self.dim)[:length].astype(numpy.float64).repeat(self.qo_heads // self.kv_heads, axis=1)
                            for pool in (k, v))
            for i in range(queries):
                place = length - queries + i
                first = max(0, place + 1 - self.options["window"]) if self.options.get("window") else 0
                scores = numpy.einsum("hd,thd->ht", self.q[row].astype(numpy.float64), keys[first:place + 1]) / numpy.sqrt(self.dim)
                if cap := self.options.get("soft_cap"):
                    scores = cap * numpy.tanh(scores / cap)
                top = scores.max(axis=1, keepdims=True)
                weights = numpy.exp(scores - top)
                sums = weights.sum(axis=1, keepdims=True)
                outs.append(numpy.einsum("ht,thd->hd", weights / sums, values[first:place + 1]))
                lses.append((top + numpy.log(sums))[:, 0])
                row += 1
        return numpy.array(outs), numpy.array(lses)


class Forests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.device = attention.Device("cpu", num_threads=2)

    def check(self, case):
        out, lse = attention.run(case.q, case.kv, case.plan)
        expected_out, expected_lse = case.expected()
        numpy.testing.assert_allclose(out, expected_out, rtol=1e-3, atol=1e-3)
        numpy.testing.assert_allclose(lse, expected_lse, rtol=1e-3, atol=1e-3)

    def test_random_forests(self):
        options = [{}, {"force_sharing": True}, {"share": False}, {"deterministic": True}, {"window": 20}, {"soft_cap": 5.0, "force_sharing": True}]
        for seed in range(60):
            with self.subTest(seed=seed):
                self.check(Case(seed, self.device, layout=("NHD", "HND")[seed % 2], **options[seed % len(options)]))

    def test_sharing_reads_less(self):
        shared, alone = (Case(3, self.device, force_sharing=force, share=force).plan for force in (True, False))
        self.assertLess(shared.stats()["kv_tokens_read"], alone.stats()["kv_tokens_read"])
        self.assertIn("share", shared.explain())

    def test_page_tables_tell_what_is_shared(self):
        for seed in range(40):
            with self.subTest(seed=seed):
                case = Case(seed, self.device, force_sharing=True)
                tables, lengths, queries = zip(*case.branches)
                by_hand = case.plan.stats()["kv_tokens_read"]
                case.forest = attention.Forest.of_page_tables(tables, lengths, queries, PAGE)
                case.plan.update(case.forest)
                self.check(case)
                self.assertLessEqual(case.plan.stats()["kv_tokens_read"], by_hand)

    def test_page_tables_of_edges(self):
        pool = numpy.random.default_rng(0).standard_normal((2, 64, PAGE, 1, 32)).astype(numpy.float32)
        kv = attention.KvPool(self.device, *pool)

        def read(tables, lengths, queries=None):
            """KV tokens that a plan reads, whose result is that of requests that share nothing."""
            results = []
            for forest in (attention.Forest.of_page_tables(tables, lengths, queries, PAGE), attention.Forest(PAGE)):
                if forest.capacity()["max_branches"] == 0:
                    for table, length, count in zip(tables, lengths, queries or [1] * len(tables)):
                        forest.add_branch(forest.add_node(None, 0), length, table, count)
                plan = attention.Plan(self.device, forest, num_qo_heads=2, num_kv_heads=1, head_dim=32, dtype="f32", force_sharing=True)
                q = numpy.random.default_rng(1).standard_normal((plan.num_queries, 2, 32)).astype(numpy.float32)
                results.append((plan.stats()["kv_tokens_read"], attention.run(q, kv, plan)))
            for ours, theirs in zip(results[0][1], results[1][1]):
                numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
            return results[0][0]

        page = PAGE
        self.assertEqual(read([[0, 1], [0, 1]], [2 * page, 2 * page]), 2 * page)  # equal, whole pages
        self.assertEqual(read([[0, 1], [0, 1]], [2 * page - 1, 2 * page - 1]), page + 2 * (page - 1))  # the last page is not full
        self.assertEqual(read([[0, 1, 2], [0, 1], [0]], [2 * page + 3, page + 1, page]), page + (page + 3) + 1)  # a chain
        self.assertEqual(read([[0, 1], [0, 2]], [2 * page, 2 * page], [page + 1, 1]), page + 2 * page)  # page 0 is not seen whole by all queries
        self.assertEqual(read([[5], [6]], [1, page]), 1 + page)  # nothing is shared
        self.assertEqual(read([[i] for i in range(40)], [1] * 40), 40)
        self.assertEqual(read([list(range(i, 0, -1)) for i in range(1, 60)], [i * page for i in range(1, 60)]), sum(range(1, 60)) * page)
        with self.assertRaisesRegex(ValueError, "2 page_tables, 1 kv_lens"):
            attention.Forest.of_page_tables([[0], [1]], [1])

    def test_branches_grow(self):
        case = Case(1, self.device, max_page_slots=4096)
        pages, length, queries = case.branches[0]
        free = len(pages) * PAGE - length
        for grown in range(1, free + 1):
            case.forest.set_length(0, length + grown)
            with self.assertRaisesRegex(ValueError, "update"):
                attention.run(case.q, case.kv, case.plan)
            case.plan.update(case.forest)
            case.branches[0] = (pages, length + grown, queries)
            self.check(case)

    def test_appended_tokens_are_read(self):
        case = Case(2, self.device)
        pages, length, _ = case.branches[0]
        random = numpy.random.default_rng(5)
        k, v = (random.standard_normal((2, case.kv_heads, case.dim)).astype(numpy.float32) for _ in range(2))
        slot = pages[(length - 1) // PAGE] * PAGE + (length - 1) % PAGE
        case.kv.append(k, v, [slot, -1])
        numpy.testing.assert_array_equal(case.k[slot // PAGE, slot % PAGE], k[0])
        self.check(case)

    def test_states_merge(self):
        random = numpy.random.default_rng(0)
        scores, values = random.standard_normal((5, 2, 30)), random.standard_normal((5, 30, 2, 16))

        def state(first, last):
            weights = numpy.exp(scores[..., first:last])
            out = numpy.einsum("nht,nthd->nhd", weights, values[:, first:last]) / weights.sum(-1)[..., None]
            return out.astype(numpy.float32), numpy.log(weights.sum(-1)).astype(numpy.float32)

        parts = [state(0, 7), state(7, 20), state(20, 30)]
        kept = parts[0][0].copy()
        out, lse = attention.merge_states(self.device, parts)
        whole = state(0, 30)
        numpy.testing.assert_allclose(out, whole[0], rtol=1e-5, atol=1e-5)
        numpy.testing.assert_allclose(lse, whole[1], rtol=1e-5, atol=1e-5)
        numpy.testing.assert_array_equal(parts[0][0], kept)
        pair = attention.merge_state(self.device, *attention.merge_state(self.device, *parts[0], *parts[1]), *parts[2])
        numpy.testing.assert_allclose(pair[0], out, rtol=1e-5, atol=1e-5)

    def test_calls_do_not_grow(self):
        case = Case(4, self.device)
        out, lse = attention.run(case.q, case.kv, case.plan)

        def repeat(count):
            for _ in range(count):
                attention.run(case.q, case.kv, case.plan, out, lse)
                case.plan.update(case.forest)
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        before = repeat(500)
        self.assertLess(repeat(int(os.environ.get("COPPICE_CALLS", 5000))) - before, 1024)  # KiB


class Mistakes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.device = attention.Device("cpu", num_threads=1)
        cls.case = Case(0, cls.device)

    def refused(self, error, words, call):
        with self.assertRaises(error) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_tensors(self):
        case = self.case
        self.refused(ValueError, ["q", "64 bits"], lambda: attention.run(case.q.astype(numpy.float64), case.kv, case.plan))
        self.refused(ValueError, ["q", "f16", "f32"], lambda: attention.run(case.q.astype(numpy.float16), case.kv, case.plan))
        self.refused(ValueError, ["q", f"[{case.rows}, {case.qo_heads}, {case.dim // 2}]"],
                     lambda: attention.run(numpy.ascontiguousarray(case.q[..., :case.dim // 2]), case.kv, case.plan))
        self.refused(ValueError, ["q", "stride 2"], lambda: attention.run(numpy.repeat(case.q, 2, axis=2)[..., ::2], case.kv, case.plan))
        self.refused(TypeError, ["out", "list"], lambda: attention.run(case.q, case.kv, case.plan, out=[1.0]))
        frozen = numpy.empty_like(case.q)
        frozen.flags.writeable = False
        self.refused(TypeError, ["out", "written"], lambda: attention.run(case.q, case.kv, case.plan, out=frozen))
        self.refused(ValueError, ["lse", "float32"], lambda: attention.run(case.q, case.kv, case.plan, lse=numpy.empty((1, 1), numpy.float32)))
        self.refused(ValueError, ["k and v differ"], lambda: attention.KvPool(self.device, case.k, case.v[:1]))
        self.refused(ValueError, ["layout", "'HDN'"], lambda: attention.KvPool(self.device, case.k, case.v, "HDN"))

    def test_plans_and_forests(self):
        forest = self.case.forest
        shape = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64}
        self.refused(ValueError, ["head_dim", "63"], lambda: attention.Plan(self.device, forest, **shape | {"head_dim": 63}))
        self.refused(ValueError, ["dtype", "'int8'"], lambda: attention.Plan(self.device, forest, **shape, dtype="int8"))
        self.refused(TypeError, ["max_pages", "3"], lambda: attention.Plan(self.device, forest, **shape, max_pages=3))
        self.refused(MemoryError, ["1"], lambda: attention.Plan(self.device, forest, **shape, max_branches=1))
        self.refused(ValueError, ["parent=7"], lambda: attention.Forest().add_node(7, 0))
        self.refused(ValueError, ["node=0"], lambda: attention.Forest().add_branch(0, 1, [0]))
        self.refused(ValueError, ["device", "'tpu'"], lambda: attention.Device("tpu"))


if __name__ == "__main__":
    unittest.main()
