"""coppice_llm.attention over arrays of JAX, which cannot be written: results are JAX's too, and equal to numpy's. 150 MB of packages."""

import sys
import unittest

from long_packages import install_or_skip

sys.path.append(install_or_skip("jax", __file__))

import jax
import numpy
from attention_test import Case

from coppice_llm import attention

NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class Arrays(unittest.TestCase):
    def test_random_forests(self):
        device = attention.Device("cpu", num_threads=2)
        cpu = jax.devices("cpu")[0]
        for seed in range(18):
            for dtype, name in NAMES.items():
                with self.subTest(seed=seed, dtype=dtype):
                    case = Case(seed, device, layout=("NHD", "HND")[seed % 2], force_sharing=seed % 3 == 0)
                    q, k, v = (jax.device_put(jax.numpy.asarray(each, dtype), cpu) for each in (case.q, case.k, case.v))
                    case.q, case.k, case.v = (numpy.asarray(each, numpy.float32) for each in (q, k, v))  # as they were rounded
                    kv = attention.KvPool(device, k, v, case.layout)
                    plan = attention.Plan(device, case.forest, num_qo_heads=case.qo_heads, num_kv_heads=case.kv_heads, head_dim=case.dim, dtype=name)
                    out, lse = attention.run(q, kv, plan)
                    self.assertIsInstance(out, jax.Array)
                    self.assertEqual((str(out.dtype), str(lse.dtype), out.shape), (dtype, "float32", q.shape))
                    tolerance = {"float32": 1e-3, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
                    for mine, exact in zip((out, lse), case.expected()):
                        numpy.testing.assert_allclose(numpy.asarray(mine, numpy.float32), exact, rtol=tolerance, atol=tolerance)
                    merged_out, merged_lse = attention.merge_states(device, [(out, lse), (out, lse), (out, lse)])
                    numpy.testing.assert_allclose(merged_lse, lse + numpy.log(3), rtol=1e-5, atol=1e-5)
                    numpy.testing.assert_allclose(numpy.asarray(merged_out, numpy.float32), numpy.asarray(out, numpy.float32), rtol=tolerance, atol=tolerance)
                    self.assertIsNone(attention.run(q, kv, plan, return_lse=False)[1])

    def test_rows_behind_the_queries_see_nothing(self):
        device = attention.Device("cpu", num_threads=2)
        case = Case(2, device)
        q = jax.numpy.concatenate([jax.numpy.asarray(case.q), jax.numpy.full_like(case.q[:3], jax.numpy.nan)])
        out, lse = attention.run(q, case.kv, case.plan)
        self.assertEqual((float(abs(out[-3:]).max()), float(lse[-3:].max())), (0.0, -numpy.inf))


if __name__ == "__main__":
    unittest.main()
