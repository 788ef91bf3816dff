"""coppice_llm.attention: random forests against float64, states, and what callers do wrong."""

import os
import resource
import sys
import threading
import time
import types
import unittest

import numpy

from coppice_llm import attention

PAGE = 8


class Case:
    """A random forest of two to three levels over one pool, and its queries; with a device, its KvPool and Plan."""

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
        if device:
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

    def test_page_tables_report_what_is_shared(self):
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
        # As a model has them whose k was rotated into memory of its own, while v is a part of its product.
        product = random.standard_normal((2, 3 * case.kv_heads, case.dim)).astype(numpy.float32)
        case.kv.append(-k, product[:, 2 * case.kv_heads:], [slot, -1])
        numpy.testing.assert_array_equal(case.k[slot // PAGE, slot % PAGE], -k[0])
        numpy.testing.assert_array_equal(case.v[slot // PAGE, slot % PAGE], product[0, 2 * case.kv_heads:])
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


    def test_a_plan_says_nothing_of_a_forest_that_changed(self):
        case = Case(1, self.device)
        before = case.plan.stats(), case.plan.explain()
        for _ in range(64):  # the arrays of the forest move
            case.forest.add_branch(case.forest.add_node(None, 0), 1, [0] * 64)
        for _ in range(2):
            for ask in (case.plan.stats, case.plan.explain):
                with self.assertRaisesRegex(ValueError, "update the plan first"):
                    ask()
            with self.assertRaises(MemoryError):
                case.plan.update(case.forest)
        case = Case(1, self.device)
        case.forest.set_length(0, case.branches[0][1])
        case.plan.update(case.forest)
        self.assertEqual((case.plan.stats(), case.plan.explain()), before)

    def test_a_single_page_has_any_page_stride(self):
        case = Case(2, self.device)
        forest = attention.Forest(PAGE)
        forest.add_branch(forest.add_node(None, 0), 5, [0])
        plan = attention.Plan(self.device, forest, num_qo_heads=case.qo_heads, num_kv_heads=case.kv_heads, head_dim=case.dim, dtype="f32")
        # Parts of wider arrays: numpy's newaxis has the stride 0.
        k = numpy.concatenate([case.k[0], case.k[0]], axis=1)[None, :, :case.kv_heads]
        v = numpy.concatenate([case.v[:1], case.v[:1]], axis=2)[:, :, :case.kv_heads]
        self.assertNotEqual(k.strides, v.strides)
        for mine, other in zip(attention.run(case.q[:1], attention.KvPool(self.device, k, v), plan), attention.run(case.q[:1], case.kv, plan)):
            numpy.testing.assert_array_equal(mine, other)

    def test_a_tensor_may_be_computed_when_it_is_taken(self):
        case = Case(2, attention.Device("cpu", num_threads=1))

        class Lazy:
            shape, dtype = case.q.shape, case.q.dtype

            def __dlpack__(self, **options):
                return (attention.run(case.q, case.kv, case.plan)[0] * 0 + case.q).__dlpack__(**options)

            def __dlpack_device__(self):
                return case.q.__dlpack_device__()

        lazy, results = Lazy(), []
        thread = threading.Thread(target=lambda: results.extend(attention.run(lazy, case.kv, case.plan)), daemon=True)
        thread.start()
        thread.join(60)
        self.assertFalse(thread.is_alive(), "the call waits for itself")
        for mine, other in zip(results, attention.run(case.q, case.kv, case.plan)):
            numpy.testing.assert_array_equal(mine, other)

    def test_a_buffer_is_a_tensor(self):
        case = Case(2, self.device)
        expected = attention.run(case.q, case.kv, case.plan)
        states = attention.run(memoryview(case.q), case.kv, case.plan)
        for mine, other in zip(states, expected):
            numpy.testing.assert_array_equal(mine, other)
        for mine, other in zip(attention.merge_states(self.device, [[memoryview(part) for part in states]] * 2), attention.merge_states(self.device, [states] * 2)):
            numpy.testing.assert_array_equal(mine, other)

    def test_a_lse_that_is_nan_comes_through(self):
        nan, infinity = float("nan"), float("inf")
        for lses in ((nan, 1.0), (1.0, nan), (-infinity, nan), (nan, -infinity), (-infinity, nan, 2.0), (nan, nan), (nan,)):
            states = [(numpy.full((1, 1, 8), 0.0 if lse == -infinity else 1.0, numpy.float32), numpy.full((1, 1), lse, numpy.float32)) for lse in lses]
            out, lse = attention.merge_states(self.device, states)
            self.assertTrue(numpy.isnan(lse).all(), lses)
            self.assertTrue(numpy.isnan(out).all() or lses.count(-infinity) == len(lses) - 1, lses)

    def test_a_forest_without_queries(self):
        case = Case(2, self.device)
        shape = {"num_qo_heads": case.qo_heads, "num_kv_heads": case.kv_heads, "head_dim": case.dim, "dtype": "f32"}
        idle = attention.Forest(PAGE)
        idle.add_branch(idle.add_node(None, 0), 3, [0], 0)
        for forest in (attention.Forest(PAGE), idle):
            plan = attention.Plan(self.device, forest, **shape)
            self.assertEqual((plan.num_queries, plan.stats()["kv_tokens_read"]), (0, 0))
            out, lse = attention.run(case.q, case.kv, plan)
            self.assertTrue((out == 0).all() and numpy.isneginf(lse).all())

    def test_tables_in_an_array(self):
        for seed in range(20):
            case = Case(seed, self.device, force_sharing=True)
            tables, lengths, queries = zip(*case.branches)
            wide = numpy.full((len(tables), max(map(len, tables)) + 3), -7, numpy.int64)  # what no request needs is not looked at
            for row, table in zip(wide, tables):
                row[:len(table)] = table
            case.forest = attention.Forest.of_page_tables(wide, numpy.array(lengths), numpy.array(queries, numpy.int16), PAGE)
            case.plan.update(case.forest)
            self.check(case)
            self.assertEqual(case.plan.stats(), attention.Plan(self.device, attention.Forest.of_page_tables(tables, lengths, queries, PAGE),
                                                               num_qo_heads=case.qo_heads, num_kv_heads=case.kv_heads, head_dim=case.dim, dtype="f32",
                                                               force_sharing=True).stats())

    def test_a_plan_goes_from_one_forest_to_another(self):
        # As many nodes and branches, other lengths of what is shared: equal in all that a plan may skip to look at, but for the version.
        case = Case(3, self.device)
        plan = None
        for shared in (4, 1, 3):
            forest = attention.Forest(PAGE)
            node = forest.add_node(None, 0, shared * PAGE)
            pages = [[*range(shared), *range(10 * i, 10 * i + 6 - shared)] for i in (1, 2)]
            for row in pages:
                forest.add_branch(forest.add_node(node, shared * PAGE), 5 * PAGE + 3, row)
            if plan is None:
                plan = attention.Plan(self.device, forest, num_qo_heads=case.qo_heads, num_kv_heads=case.kv_heads, head_dim=case.dim, dtype="f32", force_sharing=True)
            plan.update(forest)
            case.branches, case.options = [(row, 5 * PAGE + 3, 1) for row in pages], {}
            case.q, case.plan = case.q[:2], plan
            self.check(case)
            self.assertEqual(plan.stats()["kv_tokens_read"], 2 * (5 * PAGE + 3) - shared * PAGE)

    def test_threads_share_a_plan(self):
        # One runs it while another makes it fit one forest after the other: each run is that of one of them, or refused.
        tables = [[[*range(shared), *range(20 + 4 * i, 24 + 4 * i)] for i in range(count)] for count, shared in ((32, 12), (4, 0), (17, 3))]
        forests = [attention.Forest.of_page_tables(rows, [len(row) * PAGE - 3 for row in rows], page_size=PAGE) for rows in tables]
        random = numpy.random.default_rng(0)
        k, v = random.standard_normal((2, 160, PAGE, 2, 64)).astype(numpy.float32)
        q, kv = random.standard_normal((32, 2, 64)).astype(numpy.float32), attention.KvPool(self.device, k, v)
        plan = attention.Plan(self.device, forests[0], num_qo_heads=2, num_kv_heads=2, head_dim=64, dtype="f32", force_sharing=True)
        expected = []
        for forest in forests:
            plan.update(forest)
            expected.append(attention.run(q, kv, plan)[0])
        done = threading.Event()

        def update():
            while not done.is_set():
                for forest, rows in zip(forests, tables):
                    plan.update(forest)
                    forest.set_length(0, len(rows[0]) * PAGE - 3)

        thread = threading.Thread(target=update)
        thread.start()
        try:
            runs = 0
            for _ in range(2000):
                try:
                    out, _ = attention.run(q, kv, plan)
                except ValueError as error:
                    self.assertIn("update the plan first", str(error))
                else:
                    runs += 1
                    self.assertTrue(any(numpy.allclose(out, each, atol=1e-4) for each in expected))
        finally:
            done.set()
            thread.join()
        print(f"\n{runs} of 2000 runs")

    def test_lse_is_only_computed_where_it_is_wanted(self):
        case = Case(1, self.device)
        out, lse = attention.run(case.q, case.kv, case.plan)
        again, none = attention.run(case.q, case.kv, case.plan, return_lse=False)
        self.assertIsNone(none)
        numpy.testing.assert_array_equal(again, out)
        into = numpy.empty_like(lse)
        self.assertIs(attention.run(case.q, case.kv, case.plan, lse=into, return_lse=False)[1], into)
        numpy.testing.assert_array_equal(into, lse)

    def test_slots_in_any_form(self):
        case = Case(2, self.device)
        k = numpy.ones((3, case.kv_heads, case.dim), numpy.float32)
        for i, slots in enumerate(([5, -1, 9], (5, -1, 9), numpy.array([5, -1, 9]), numpy.array([5, -1, 9], numpy.int32))):
            case.k[:] = 0
            case.kv.append(k * (i + 1), k, slots)
            self.assertEqual([float(case.k.reshape(-1, case.kv_heads, case.dim)[slot].min()) for slot in (5, 8, 9)], [i + 1, 0, i + 1])

    def test_libraries_with_dlpack_alone(self):
        """Tensors of a library other than numpy and torch: they have DLPack, a shape and a dtype."""

        class Tensor:
            def __init__(self, array):
                self.array, self.shape, self.dtype = array, array.shape, array.dtype
                self.__dlpack__ = array.__dlpack__

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __len__(self):
                return len(self.array)

            def __setitem__(self, key, value):
                self.array[key] = value

            def copy(self):
                return Tensor(self.array.copy())

        case = Case(5, self.device)
        case.kv = attention.KvPool(self.device, Tensor(case.k), Tensor(case.v))
        expected = attention.run(case.q, case.kv, case.plan)
        for mine, numpys in zip(attention.run(Tensor(case.q), case.kv, case.plan), expected):
            numpy.testing.assert_array_equal(mine, numpys)
        # CuPy makes the results of its tensors, in its stream.
        Tensor.__module__ = "cupy.core"
        sys.modules["cupy"] = types.SimpleNamespace(empty=lambda shape, dtype: Tensor(numpy.empty(shape, dtype)))
        try:
            out, lse = attention.run(Tensor(case.q), case.kv, case.plan)
            merged = attention.merge_states(self.device, [(out, lse), (out, lse)])
        finally:
            del sys.modules["cupy"]
        self.assertTrue(all(isinstance(each, Tensor) for each in (out, lse, *merged)))
        numpy.testing.assert_array_equal(out.array, expected[0])
        numpy.testing.assert_allclose(merged[1].array, expected[1] + numpy.log(2), rtol=1e-5, atol=1e-5)

    def test_what_cannot_be_written_is_read(self):
        case = Case(6, self.device)
        expected = attention.run(case.q, case.kv, case.plan)
        for array in (case.q, case.k, case.v):
            array.flags.writeable = False
        case.kv = attention.KvPool(self.device, case.k, case.v)
        for mine, before in zip(attention.run(case.q, case.kv, case.plan), expected):
            numpy.testing.assert_array_equal(mine, before)
        with self.assertRaisesRegex(TypeError, "the pool's k .*can be written"):
            case.kv.append(case.k[0, :1], case.v[0, :1], [3])

    def test_a_call_is_30_microseconds_at_most_over_the_librarys_own(self):
        # Of a tiny plan all of it is: a token more, the plan made to fit it, attention of 16 elements.
        forest = attention.Forest(16)
        forest.add_branch(forest.add_node(None, 0), 1, [0])
        plan = attention.Plan(self.device, forest, num_qo_heads=1, num_kv_heads=1, head_dim=16, dtype="f32")
        q, pool = numpy.zeros((1, 1, 16), numpy.float32), numpy.zeros((2, 1, 16, 1, 16), numpy.float32)
        kv = attention.KvPool(self.device, *pool)
        best = 1.0
        for _ in range(200):
            begin = time.perf_counter()
            for length in range(1, 17):
                forest.set_length(0, length)
                plan.update(forest)
                attention.run(q, kv, plan)
            best = min(best, (time.perf_counter() - begin) / 16)
        print(f"\nset_length, update and run: {best * 1e6:.1f} us")
        self.assertLess(best, 30e-6)


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
        self.refused(TypeError, ["q is list"], lambda: attention.run(case.q.tolist(), case.kv, case.plan))
        self.refused(TypeError, ["v is NoneType"], lambda: attention.KvPool(self.device, case.k, None))
        frozen = numpy.empty_like(case.q)
        frozen.flags.writeable = False
        self.refused(TypeError, ["out", "written"], lambda: attention.run(case.q, case.kv, case.plan, out=frozen))
        rows, heads = case.rows, case.qo_heads
        self.refused(ValueError, ["lse is f32 [1, 1]", f"[{rows}, {heads}]"], lambda: attention.run(case.q, case.kv, case.plan, lse=numpy.empty((1, 1), numpy.float32)))
        self.refused(ValueError, ["lse is f16"], lambda: attention.run(case.q, case.kv, case.plan, lse=numpy.empty((rows, heads), numpy.float16)))
        self.refused(ValueError, ["q", f"[{rows - 1}, {heads}, {case.dim}]"], lambda: attention.run(case.q[:-1], case.kv, case.plan))
        self.refused(TypeError, ["q is ndarray of >f4"], lambda: attention.run(case.q.astype(">f4"), case.kv, case.plan))
        self.refused(ValueError, ["q", "0 dimensions; expected 3"], lambda: attention.run(numpy.float32(1), case.kv, case.plan))
        self.refused(ValueError, ["k and v differ"], lambda: attention.KvPool(self.device, case.k, case.v[:1]))
        self.refused(ValueError, ["layout", "'HDN'"], lambda: attention.KvPool(self.device, case.k, case.v, "HDN"))

    def test_states(self):
        case = self.case
        out, lse = attention.run(case.q, case.kv, case.plan)
        merge = attention.merge_states
        self.refused(ValueError, ["states is empty"], lambda: merge(self.device, []))
        self.refused(TypeError, ["states[0].out is NoneType"], lambda: merge(self.device, [(None, lse)]))
        self.refused(TypeError, ["states[0].lse is tuple"], lambda: merge(self.device, [(out, (1.0,))]))
        self.refused(ValueError, ["states[1]", f"[{case.rows - 1}, ", "states[0].out"], lambda: merge(self.device, [(out, lse), (out[:-1], lse[:-1])]))
        self.refused(ValueError, ["states[1].lse is f16"], lambda: merge(self.device, [(out, lse), (out, lse.astype(numpy.float16))]))
        self.refused(ValueError, ["states[1].out is f16", "f32"], lambda: merge(self.device, [(out, lse), (out.astype(numpy.float16), lse)]))
        self.refused(ValueError, ["states[1]", "stride"], lambda: merge(self.device, [(out, lse), (out, numpy.repeat(lse, 2, axis=1)[:, ::2])]))
        self.refused(TypeError, ["states[1].out is list"], lambda: merge(self.device, [(out, lse), ([1.0], lse)]))

    def test_appends(self):
        case = self.case
        rows = numpy.zeros((2, case.kv_heads, case.dim), numpy.float32)
        self.refused(ValueError, ["slot_mapping[1] = 99999"], lambda: case.kv.append(rows, rows, [0, 99999]))
        self.refused(ValueError, ["k is f32 [2, ", "[3, "], lambda: case.kv.append(rows, rows, [0, 1, 2]))
        self.refused(ValueError, ["v is f16"], lambda: case.kv.append(rows, rows.astype(numpy.float16), [0, 1]))
        self.refused(TypeError, ["slots is float64"], lambda: case.kv.append(rows, rows, [0.5, 1]))
        self.refused(TypeError, ["k is NoneType"], lambda: case.kv.append(None, rows, [0, 1]))
        self.refused(TypeError, ["slots is object of 0"], lambda: case.kv.append(rows, rows, None))
        self.refused(TypeError, ["slots is int64 of 2"], lambda: case.kv.append(rows, rows, numpy.array([[0, 1]])))

    def test_page_tables(self):
        of = attention.Forest.of_page_tables
        self.refused(ValueError, ["page_tables has values", "3000000000"], lambda: of([[0, 3000000000]], [2]))
        self.refused(TypeError, ["kv_lens is float64"], lambda: of([[0]], [1.5]))
        self.refused(TypeError, ["page_tables=[0, 1]"], lambda: of([0, 1], [1, 1]))
        self.refused(TypeError, ["page_tables is float64 of 2"], lambda: of(numpy.zeros((1, 1)), [1]))
        self.refused(ValueError, ["1 page_tables, 2 kv_lens"], lambda: of(numpy.zeros((1, 1), int), [1, 1]))
        self.refused(ValueError, ["request 1 has -1 queries"], lambda: of([[0], [1]], [1, 1], [1, -1]))
        self.refused(ValueError, ["request 1 has 2147483647 queries"], lambda: of([[0], [1]], [1, 1], [1, 2**31 - 1]))
        shape = {"num_qo_heads": 1, "num_kv_heads": 1, "head_dim": 8}
        self.refused(ValueError, ["branch 0", "kv_len is -99"], lambda: attention.Plan(self.device, of(numpy.zeros((1, 1), int), [-99]), **shape))
        for page_size in (0, -1, 257):
            self.refused(ValueError, [f"page_size={page_size}", "1 to 256"], lambda page_size=page_size: of([[0]], [1], page_size=page_size))

    def test_plans_and_forests(self):
        forest = self.case.forest
        shape = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64}
        self.refused(ValueError, ["head_dim", "63"], lambda: attention.Plan(self.device, forest, **shape | {"head_dim": 63}))
        self.refused(ValueError, ["dtype", "'int8'"], lambda: attention.Plan(self.device, forest, **shape, dtype="int8"))
        self.refused(TypeError, ["max_pages", "3"], lambda: attention.Plan(self.device, forest, **shape, max_pages=3))
        self.refused(MemoryError, ["1"], lambda: attention.Plan(self.device, forest, **shape, max_branches=1))
        for name, value, expected in (("dtype", numpy.float32, "a string"), ("kv_dtype", 3, "a string"), ("share", 1, "True or False"),
                                      ("deterministic", "no", "True or False"), ("window", 1.5, "a number"), ("window", 2**31, "below 2^31")):
            self.refused(TypeError, [f"{name}={value!r}", expected], lambda name=name, value=value: attention.Plan(self.device, forest, **shape | {name: value}))
        self.refused(TypeError, ["device='cpu'", "Device"], lambda: attention.Plan("cpu", forest, **shape))
        self.refused(TypeError, ["forest=None", "Forest"], lambda: self.case.plan.update(None))
        self.refused(TypeError, ["plan=None", "Plan"], lambda: attention.run(self.case.q, self.case.kv, None))
        self.refused(TypeError, ["kv=None", "KvPool"], lambda: attention.run(self.case.q, None, self.case.plan))
        self.refused(ValueError, ["parent=-1"], lambda: attention.Forest().add_node(-1, 0))
        self.refused(ValueError, ["end=-1"], lambda: attention.Forest().add_node(None, 0, -1))
        self.refused(ValueError, ["parent=7"], lambda: attention.Forest().add_node(7, 0))
        self.refused(ValueError, ["node=0"], lambda: attention.Forest().add_branch(0, 1, [0]))
        self.refused(ValueError, ["kv_len=2147483648", "32 bits"], lambda: forest.set_length(0, 2**31))
        self.refused(TypeError, ["kv_len='6'", "an integer"], lambda: forest.set_length(0, "6"))
        self.refused(ValueError, ["pages=3000000000", "32 bits"], lambda: forest.add_branch(0, 1, [0, 3000000000]))
        self.refused(TypeError, ["pages=0.5", "an integer"], lambda: forest.add_branch(0, 1, [0, 0.5]))
        self.refused(TypeError, ["node=None", "an integer"], lambda: forest.add_branch(None, 1, [0]))
        self.refused(TypeError, ["end=1.5", "an integer"], lambda: forest.add_node(None, 0, 1.5))
        rows = attention.Forest()
        rows.add_branch(rows.add_node(None, 0), 3, [0], 3)
        for count in (-1, 2**28 - 2, 2**31 - 1):
            self.refused(ValueError, [f"query_count={count}", "0 to 268435453"], lambda count=count: rows.add_branch(0, 1, [0], count))
        self.refused(ValueError, ["device", "'tpu'"], lambda: attention.Device("tpu"))


if __name__ == "__main__":
    unittest.main()
