#!/usr/bin/env python3
"""Makes golden.safetensors: for each GGUF element type T, `T.stored` (U8, bytes as in a file) and `T.values` (F32, what the PyPI
package `gguf` says they are). Blocks have random contents, scales of moderate size, and every scale and minimum pattern.
Run: pip install gguf==0.19.0; python make_golden.py"""
import json
import pathlib
import struct

import gguf
import numpy as np

TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Byte offsets of the float16 scales within a block; everything else may be any byte.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

rng = np.random.default_rng(20261121)


def stored_bytes(name):
    if name == "F16":  # every 37th bit pattern: normals, subnormals, zeros; infinities and NaNs at the end
        return np.concatenate([np.arange(0, 65536, 37), [0x7C00, 0xFC00, 0x7E00, 1, 0x03FF, 0x0400]]).astype(np.uint16).view(np.uint8)
    if name == "BF16":
        return np.concatenate([np.arange(0, 65536, 41), [0x7F80, 0xFF80, 1]]).astype(np.uint16).view(np.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = 1024 // elements
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in SCALES[name]:
        scale = (rng.standard_normal(count) * 0.02).astype(np.float16)
        blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(count, 2)
    return blocks.reshape(-1)


def values(name, stored):
    return gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name]).astype(np.float32)


tensors = {}
for name in TYPES:
    stored = stored_bytes(name)
    tensors[f"{name}.stored"] = ("U8", stored)
    tensors[f"{name}.values"] = ("F32", values(name, stored.view(np.float16) if name == "F16" else stored).reshape(-1))

header, data = {}, b""
for name, (dtype, array) in sorted(tensors.items()):
    header[name] = {"dtype": dtype, "shape": [array.size], "data_offsets": [len(data), len(data) + array.nbytes]}
    data += array.tobytes()
text = json.dumps(header).encode()
pathlib.Path(__file__).with_name("golden.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
