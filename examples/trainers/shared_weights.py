"""Weights through a segment of shared memory, or of a GPU's, a bucket at a time: what the adapters beside this file have in common.

docs/trainers.md, "An update", describes the message that names a bucket. Trainer and server run on one machine.
"""

from multiprocessing import shared_memory

import cuda_ipc
import torch

BUCKET_BYTES = 256 << 20
ALIGNMENT = 64


class SharedWeights:
    """`send(update_info)` notifies the server of a bucket, as `update_info` of POST /update_weights. When it returns, the server has copied the bucket,
    and the segment is free for the next one. Call close() at the end: the segment outlives the process otherwise."""

    transport = "shared_memory"

    def __init__(self, send, bucket_bytes=BUCKET_BYTES):
        self.send = send
        self.bucket_bytes = bucket_bytes
        self.segment = None
        self._size = 0  # of the segment, in bytes
        self._bucket, self._end = [], 0

    def add(self, name, weights):
        """A tensor of any device, of float32, bfloat16 or float16, under the name that it has in the model's folder."""
        weights = weights.detach()
        size = weights.numel() * weights.element_size()
        if self._end + size > self._size:
            self.flush()
            if size > self._size:
                self.close()
                self._size = max(self.bucket_bytes, size)
                self._open(self._size, weights.device)
        self._view(weights.dtype, weights.numel(), self._end).copy_(weights.reshape(-1))
        dtype = str(weights.dtype).removeprefix("torch.")
        self._bucket.append({"name": name, "dtype": dtype, "shape": list(weights.shape) or [1], "offset": self._end})
        self._end = (self._end + size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def flush(self):
        """Sends what was added; also behind the last tensor."""
        if self._bucket:
            bucket, self._bucket, self._end = self._bucket, [], 0
            self.send(self._message(bucket))

    def add_all(self, named_weights):
        for name, weights in named_weights:
            self.add(name, weights)
        self.flush()

    def _open(self, size, _device):
        self.segment = shared_memory.SharedMemory(create=True, size=size)

    def _view(self, dtype, count, offset):
        return torch.frombuffer(self.segment.buf, dtype=dtype, count=count, offset=offset)

    def _message(self, bucket):
        return {"transport": self.transport, "segment": self.segment.name, "tensors": bucket}

    def close(self):
        if self.segment is not None:
            self.segment.close()
            self.segment.unlink()
            self.segment, self._size = None, 0


class CudaWeights(SharedWeights):
    """The same through memory of the GPU that the weights lie on, which a server on a GPU of this machine reads there (CUDA IPC): nothing goes
    through the host."""

    transport = "cuda_ipc"

    def _open(self, size, device):
        self.segment = torch.empty(size, dtype=torch.uint8, device=device)

    def _view(self, dtype, count, offset):
        return self.segment[offset : offset + count * dtype.itemsize].view(dtype)

    def _message(self, bucket):
        torch.cuda.synchronize(self.segment.device)  # the copies into it are done
        info = cuda_ipc.share(self.segment.data_ptr())
        begin = info.pop("offset")
        return info | {"tensors": [tensor | {"offset": begin + tensor["offset"]} for tensor in bucket]}

    def close(self):
        self.segment, self._size = None, 0
