"""Random forests over tensors of torch, and what torch's own attention says of them."""

import torch_packages  # noqa: F401

import torch
from attention_test import Case

from coppice_llm import attention

# By dtype: of out, relative and absolute; its rounding to 8 or 11 bits (docs/numerics.md).
TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class TorchCase(Case):
    """A random forest whose tensors are torch's, of `dtype`, in the memory of `device`, whose name for torch is `where`."""

    def __init__(self, seed, device, dtype, layout="NHD", where="cpu", **options):
        super().__init__(seed, None, layout, **options)
        self.q, self.k, self.v = (torch.from_numpy(each).to(where, dtype) for each in (self.q, self.k, self.v))
        self.kv = attention.KvPool(device, self.k, self.v, layout)
        self.plan = attention.Plan(device, self.forest, num_qo_heads=self.qo_heads, num_kv_heads=self.kv_heads, head_dim=self.dim, dtype=NAMES[dtype], **options)

    def sdpa(self, dtype):
        """out by torch's attention in `dtype`, a branch at a time."""
        outs, row = [], 0
        for pages, length, queries in self.branches:
            k, v = (pool[pages].to(dtype) for pool in (self.k, self.v))
            if self.layout == "HND":
                k, v = k.transpose(1, 2), v.transpose(1, 2)
            k, v = (each.reshape(-1, self.kv_heads, self.dim)[:length].transpose(0, 1) for each in (k, v))
            seen = torch.ones(queries, length, dtype=torch.bool, device=k.device).tril(length - queries)
            q = self.q[row:row + queries].to(dtype).transpose(0, 1)
            outs.append(torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen, enable_gqa=True)[0].transpose(0, 1))
            row += queries
        return torch.cat(outs)

    def check(self, test, said):
        """(out, lse) of all queries is that of SDPA in float64, and no further from it than torch's own in that dtype, but for two
        roundings of the result."""
        out, lse = said
        dtype = out.dtype
        test.assertEqual((lse.dtype, lse.shape), (torch.float32, out.shape[:2]))
        exact, tolerance = self.sdpa(torch.float64), TOLERANCES[dtype]
        torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)
        theirs = (self.sdpa(dtype).double() - exact).abs().max()
        test.assertLessEqual((out.double() - exact).abs().max(), 2 * theirs + 2 * torch.finfo(dtype).eps * exact.abs().max())
