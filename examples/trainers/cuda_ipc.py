"""Names memory of a GPU for `coppice serve --trainer`: the GPU, a CUDA IPC handle, and an offset into the allocation that it is of.

The server reads the memory where it lies. docs/trainers.md, "An update", describes the message. Trainer and server run on one machine;
the memory must be cudaMalloc's, as that of PyTorch's allocator is unless PYTORCH_CUDA_ALLOC_CONF has expandable_segments.
"""

import ctypes
import functools
import uuid


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


@functools.cache
def driver():
    """The CUDA driver's library."""
    return ctypes.CDLL("libcuda.so.1")


def call(function, *arguments):
    """Calls a function of the driver; RuntimeError says which one failed."""
    result = getattr(driver(), function)(*arguments)
    if result != 0:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(result, ctypes.byref(text))
        raise RuntimeError(f"{function}: {(text.value or b'unknown error').decode()}")


def share(pointer):
    """Fields "transport", "device", "handle" and "offset" of update_info for memory at `pointer`, an integer such as a tensor's data_ptr().

    `offset` is that of the memory in its allocation: add it to the tensors' own. Writes to the memory must be done
    (torch.cuda.synchronize()) before the server is notified, and the memory must stay until the server has answered.
    """
    address = ctypes.c_uint64(pointer)
    context = ctypes.c_void_p()
    device = ctypes.c_int()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    handle = _IpcHandle()
    call("cuPointerGetAttribute", ctypes.byref(context), 1, address)  # CU_POINTER_ATTRIBUTE_CONTEXT
    call("cuCtxPushCurrent_v2", context)
    try:
        call("cuCtxGetDevice", ctypes.byref(device))
        call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        name = (ctypes.c_ubyte * 16)()
        call("cuDeviceGetUuid_v2", name, device)
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(context))
    return {"transport": "cuda_ipc", "device": f"GPU-{uuid.UUID(bytes=bytes(name))}", "handle": bytes(handle.reserved).hex(),
            "offset": pointer - base.value}


class DeviceMemory:
    """Memory of a GPU for a program without a framework that has it, as a context manager. `pointer` is its address."""

    def __init__(self, size, device=0):
        context, ordinal, address = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(ordinal), device)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        call("cuCtxSetCurrent", context)
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.pointer = address.value

    def write(self, content, offset=0):
        """Copies bytes to `offset`, and waits."""
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.pointer + offset), bytes(content), ctypes.c_size_t(len(content)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        call("cuMemFree_v2", ctypes.c_uint64(self.pointer))
