"""The trainer's side of weights by NCCL broadcast, without PyTorch: a store that speaks as torch.distributed's TCPStore does, and a first rank that
does what vLLM's StatelessProcessGroup and PyNcclCommunicator do, on the library of COPPICE_FAKE_NCCL."""

import ctypes
import os
import pickle
import socket
import socketserver
import struct
import sys
import threading
import types

LIBRARY = os.path.join(os.environ.get("COPPICE_FAKE_NCCL", ""), "libnccl.so.2")
MAGIC = 0x3C85F7CE
VALIDATE, SET, GET, ADD, CHECK, WAIT, CANCEL_WAIT, PING = 0, 1, 3, 4, 5, 6, 12, 13
TYPES = {"float32": 7, "float16": 6, "bfloat16": 9}  # ncclDataType_t
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
UINT8 = 1


class NcclId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


# As vLLM's is pickled: a class of that name in that module.
WRAPPER = "vllm.distributed.device_communicators.pynccl_wrapper"
NcclId.__name__ = NcclId.__qualname__ = "ncclUniqueId"
NcclId.__module__ = WRAPPER
for _end in [at for at, letter in enumerate(WRAPPER) if letter == "."] + [len(WRAPPER)]:
    sys.modules.setdefault(WRAPPER[:_end], types.ModuleType(WRAPPER[:_end]))
sys.modules[WRAPPER].ncclUniqueId = NcclId


class TcpStore:
    """A store for one client or several: each command is a byte, and texts are their length and bytes."""

    def __init__(self, port=0):
        self.values, self.changed = {}, threading.Condition()
        store = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                store.connections.append(self.request)
                self.greeted = False
                try:
                    while self.command():
                        pass
                except (ConnectionError, struct.error, OSError):
                    pass

            def read(self, size):
                data = b""
                while len(data) < size:
                    part = self.request.recv(size - len(data))
                    if not part:
                        raise ConnectionError
                    data += part
                return data

            def number(self, form):
                return struct.unpack(form, self.read(struct.calcsize(form)))[0]

            def text(self):
                return self.read(self.number("<Q"))

            def command(self):
                command = self.number("<B")
                if not self.greeted and command != VALIDATE:
                    return False
                if command == VALIDATE:
                    self.greeted = self.number("<I") == MAGIC
                    return self.greeted
                if command == PING:
                    self.request.sendall(self.read(4))
                elif command == SET:
                    store.set_raw(self.text(), self.text())
                elif command == ADD:
                    key, delta = self.text(), self.number("<q")
                    with store.changed:
                        value = int(store.values.get(key, b"0")) + delta
                        store.values[key] = b"%d" % value
                        store.changed.notify_all()
                    self.request.sendall(struct.pack("<q", value))
                elif command == WAIT:
                    keys = [self.text() for _ in range(self.number("<Q"))]
                    with store.changed:
                        store.changed.wait_for(lambda: store.closed or all(key in store.values for key in keys))
                    self.request.sendall(b"\0")
                elif command == GET:
                    value = store.values[self.text()]
                    self.request.sendall(struct.pack("<Q", len(value)) + value)
                else:
                    return False
                return True

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads = True, True

        self.connections, self.closed = [], False
        self.server = Listener(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def set_raw(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def set(self, key, value):
        self.set_raw(b"/" + key.encode(), value)

    def wait_for_workers(self, count):
        """As the owner of a TCPStore does, itself one of them."""
        with self.changed:
            assert self.changed.wait_for(lambda: int(self.values.get(b"init/", b"0")) >= count - 1, 60)

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Trainer:
    """The first rank of a group. `store`: by set() as torch's; the ranks have joined when the object is there."""

    def load(self):
        self.nccl = ctypes.CDLL(LIBRARY)
        self.nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, NcclId, ctypes.c_int]

    def __init__(self, store, size=2):
        self.load()
        self.store, self.size, self.handle = store, size, ctypes.c_void_p()
        self.name = NcclId()
        self.call("ncclGetUniqueId", ctypes.byref(self.name))
        store.set("broadcast_from/0/0", pickle.dumps(self.name))
        self.call("ncclCommInitRank", ctypes.byref(self.handle), size, self.name, 0)
        number = (ctypes.c_float * 1)()
        self.call("ncclAllReduce", number, (ctypes.c_float * 1)(), ctypes.c_size_t(1), TYPES["float32"], 0, self.handle, None)

    def call(self, name, *arguments):
        result = getattr(self.nccl, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def broadcast(self, data, count, type_number):
        buffer = (ctypes.c_char * len(data)).from_buffer_copy(data)
        self.call("ncclBroadcast", buffer, buffer, ctypes.c_size_t(count), type_number, 0, self.handle, None)

    def send(self, tensors):
        """Of (name, dtype, shape, bytes), one after the other."""
        for _, dtype, _, data in tensors:
            self.broadcast(data, len(data) // BYTES[dtype], TYPES[dtype])

    def send_packed(self, tensors, buffer_bytes):
        """As vLLM's packed_nccl_broadcast_producer: a broadcast ends with the tensor that brings it above `buffer_bytes`. Returns how many there
        were."""
        packed, count = b"", 0
        for _, _, _, data in tensors:
            packed += data
            if len(packed) > buffer_bytes:
                self.broadcast(packed, len(packed), UINT8)
                packed, count = b"", count + 1
        if packed:
            self.broadcast(packed, len(packed), UINT8)
            count += 1
        return count

    def close(self):
        if self.handle:
            self.call("ncclCommAbort", self.handle)
            self.handle = None


class TorchTrainer(Trainer):
    """The first rank of a group of torch.distributed, as SGLang's clients make it by init_custom_process_group: its communicator is made, and its name
    stored, with the first broadcast."""

    def __init__(self, store, group_name, size=2):  # pylint: disable=super-init-not-called
        self.load()
        self.store, self.group_name, self.size, self.handle = store, group_name, size, ctypes.c_void_p()

    def broadcast(self, data, count, type_number):
        if not self.handle:
            name = NcclId()
            self.call("ncclGetUniqueId", ctypes.byref(name))
            # ProcessGroupNCCL's key 0, in PrefixStores for its device, for the group, and of init_custom_process_group.
            self.store.set(f"{self.group_name}/{self.group_name}//cuda//0", bytes(name))
            self.call("ncclCommInitRank", ctypes.byref(self.handle), self.size, name, 0)
        super().broadcast(data, count, type_number)


def update_info(tensors, **fields):
    return {"names": [name for name, *_ in tensors], "dtype_names": [dtype for _, dtype, *_ in tensors], "shapes": [shape for _, _, shape, _ in tensors]} | fields
