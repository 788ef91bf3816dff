"""Weights through a segment of shared memory, a bucket at a time: what the adapters beside this file have in common.

docs/trainers.md, "An update", describes the message that names a bucket. Trainer and server run on one machine.
"""

from multiprocessing import shared_memory

import torch

BUCKET_BYTES = 256 << 20
ALIGNMENT = 64


class SharedWeights:
    """`send(update_info)` tells the server of a bucket, as `update_info` of POST /update_weights. When it returns, the server has copied the bucket,
    and the segment is free for the next one. Call close() at the end: the segment outlives the process otherwise."""

    def __init__(self, send, bucket_bytes=BUCKET_BYTES):
        self.send = send
        self.bucket_bytes = bucket_bytes
        self.segment = None
        self._bucket, self._end = [], 0

    def add(self, name, weights):
        """A tensor of any device, of float32, bfloat16 or float16, under the name that it has in the model's folder."""
        weights = weights.detach()
        size = weights.numel() * weights.element_size()
        if self.segment is None or self._end + size > self.segment.size:
            self.flush()
            self._open(max(self.bucket_bytes, size))
        there = torch.frombuffer(self.segment.buf, dtype=weights.dtype, count=weights.numel(), offset=self._end)
        there.copy_(weights.reshape(-1))
        dtype = str(weights.dtype).removeprefix("torch.")
        self._bucket.append({"name": name, "dtype": dtype, "shape": list(weights.shape) or [1], "offset": self._end})
        self._end = (self._end + size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def flush(self):
        """Sends what was added; also behind the last tensor."""
        if self._bucket:
            bucket, self._bucket, self._end = self._bucket, [], 0
            self.send({"transport": "shared_memory", "segment": self.segment.name, "tensors": bucket})

    def add_all(self, named_weights):
        for name, weights in named_weights:
            self.add(name, weights)
        self.flush()

    def _open(self, size):
        if self.segment is not None and self.segment.size >= size:
            return
        self.close()
        self.segment = shared_memory.SharedMemory(create=True, size=size)

    def close(self):
        if self.segment is not None:
            self.segment.close()
            self.segment.unlink()
            self.segment = None
