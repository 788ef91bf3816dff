"""Weights that a trainer broadcasts by NCCL, through `coppice serve --trainer`: the library is a fake on host memory, the trainer's store a small one
written from TCPStore's protocol. python_vllm_transfer_test has PyTorch's, vLLM's and TRL's own."""

import contextlib
import hashlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

from nccl_trainer import TcpStore, TorchTrainer, Trainer, update_info
from server_process import TINY, Server, free_port
from trainer_test import TORCH_NAMES, complete, get, read_weights, reversed_matrices, tokens, weights_of, write_folder

FAKE = {"LD_LIBRARY_PATH": os.environ["COPPICE_FAKE_NCCL"]}
HERE = os.path.dirname(os.path.abspath(__file__))


class NcclTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.header, loaded = read_weights(os.path.join(TINY, "model.safetensors"))
        other = reversed_matrices(cls.header, loaded)
        cls.loaded, cls.other = cls.tensors_of(loaded), cls.tensors_of(other)
        with tempfile.TemporaryDirectory() as folder:
            write_folder(folder, cls.header, other)
            with Server("--dtype", "f32") as server:
                cls.loaded_tokens = tokens(server)
            with Server("--dtype", "f32", model=folder) as server:
                cls.other_tokens = tokens(server)
        assert cls.loaded_tokens != cls.other_tokens

    @classmethod
    def tensors_of(cls, content):
        """(name, dtype, shape, bytes) of each."""
        return [(name, TORCH_NAMES[entry["dtype"]], entry["shape"], bytes(content[entry["data_offsets"][0] : entry["data_offsets"][1]]))
                for name, entry in sorted(cls.header.items())]

    def server(self, *options, timeout=60):
        return Server("--trainer", "--dtype", "f32", "--trainer-timeout", timeout, *options, environment=FAKE)

    def post(self, server, path, body=None, status=200):
        got, _, text = server.ask("POST", path, body if body is not None else {})
        self.assertEqual(got, status, (path, text))
        return text

    def beside(self, server, path, body, status=200):
        """Posts while the trainer does its part, as clients of vLLM do; to be entered."""
        texts = []

        def ask():
            texts.append(server.ask("POST", path, body))

        @contextlib.contextmanager
        def run():
            thread = threading.Thread(target=ask)
            thread.start()
            yield texts
            thread.join()
            self.assertEqual(texts[0][0], status, (path, texts[0][2]))

        return run()

    def init_info(self, store, **fields):
        return {"init_info": {"master_address": "127.0.0.1", "master_port": store.port, "rank_offset": 1, "world_size": 2} | fields}

    @contextlib.contextmanager
    def trainer(self, server, **fields):
        store = TcpStore()
        try:
            with self.beside(server, "/init_weight_transfer_engine", self.init_info(store, **fields)):
                store.wait_for_workers(2)
                trainer = Trainer(store)
            yield trainer
            trainer.close()
        finally:
            store.close()

    def test_weights_come_one_by_one_and_packed(self):
        with self.server() as server, self.trainer(server) as trainer:
            self.assertEqual(tokens(server), self.loaded_tokens)
            self.post(server, "/start_weight_update")
            with self.beside(server, "/update_weights", {"update_info": update_info(self.other, checksum=True)}):
                trainer.send(self.other)
            self.assertEqual(weights_of(server)["missing"], [])
            self.post(server, "/finish_weight_update", {"weight_version": "one"})
            self.assertEqual(tokens(server), self.other_tokens)
            # Several messages make one update.
            self.post(server, "/start_weight_update")
            for at in range(0, len(self.loaded), 5):
                some = self.loaded[at : at + 5]
                with self.beside(server, "/update_weights", {"update_info": update_info(some)}):
                    trainer.send(some)
            self.post(server, "/finish_weight_update", {"weight_version": "two"})
            self.assertEqual(tokens(server), self.loaded_tokens)
            # Packed: as one buffer, as several, and as one a tensor.
            for buffer_bytes, weights, expected in ((1 << 30, self.other, self.other_tokens), (20_000, self.loaded, self.loaded_tokens),
                                                    (1, self.other, self.other_tokens)):
                self.post(server, "/start_weight_update")
                info = update_info(weights, packed=True, packed_buffer_size_bytes=buffer_bytes)
                with self.beside(server, "/update_weights", {"update_info": info}):
                    parts = trainer.send_packed(weights, buffer_bytes)
                self.post(server, "/finish_weight_update")
                self.assertEqual(tokens(server), expected, buffer_bytes)
                self.assertEqual(parts == 1, buffer_bytes == 1 << 30)
            self.assertEqual(weights_of(server)["version"], 5)

    def test_checksums_are_of_what_came(self):
        with self.server() as server, self.trainer(server) as trainer:
            with self.beside(server, "/update_weights", {"update_info": update_info(self.other, checksum=True)}):
                trainer.send(self.other)
            expected = {name: hashlib.sha256(data).hexdigest() for name, _, _, data in self.other}
            self.assertEqual(self.post(server, "/weight_checker", {"action": "compare", "baseline": expected}), '{"match":true,"mismatches":[]}')

    def test_what_the_group_was_made_with_counts_where_a_message_says_nothing(self):
        """vLLM 0.28 says it when the group is made; one /update_weights without a start is an update of its own."""
        with self.server() as server, self.trainer(server, packed=True, packed_buffer_size_bytes=9_000) as trainer:
            with self.beside(server, "/update_weights", {"update_info": update_info(self.other), "weight_version": "all"}):
                self.assertGreater(trainer.send_packed(self.other, 9_000), 2)
            self.assertEqual(tokens(server), self.other_tokens)
            weights = weights_of(server)
            self.assertEqual((weights["label"], weights["update"], weights["version"]), ("all", "none", 1))

    def test_other_dtypes_are_converted(self):
        self.assertEqual({dtype for _, dtype, *_ in self.other}, {"bfloat16"})
        wide = [(name, "float32", shape, b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))) for name, _, shape, data in self.other]
        with self.server() as server, self.trainer(server) as trainer:
            with self.beside(server, "/update_weights", {"update_info": update_info(wide[::2] + self.other[1::2], packed=True)}):
                trainer.send_packed(wide[::2] + self.other[1::2], 1 << 30)
            self.assertEqual(tokens(server), self.other_tokens)

    def test_a_second_group_takes_the_place_of_the_first(self):
        with self.server() as server:
            for weights, expected in ((self.other, self.other_tokens), (self.loaded, self.loaded_tokens)):
                with self.trainer(server) as trainer:
                    with self.beside(server, "/update_weights", {"update_info": update_info(weights)}):
                        trainer.send(weights)
                    self.assertEqual(tokens(server), expected)

    def test_two_servers_are_ranks_of_one_group(self):
        with self.server() as first, self.server() as second:
            store = TcpStore()
            with self.beside(first, "/init_weight_transfer_engine", self.init_info(store, world_size=3)), \
                 self.beside(second, "/init_weight_transfer_engine", self.init_info(store, world_size=3, rank_offset=2)):
                store.wait_for_workers(3)
                trainer = Trainer(store, 3)
            info = {"update_info": update_info(self.other)}
            with self.beside(first, "/update_weights", info), self.beside(second, "/update_weights", info):
                trainer.send(self.other)
            self.assertEqual([tokens(first), tokens(second)], [self.other_tokens] * 2)
            trainer.close()
            store.close()

    def test_a_message_that_does_not_fit_changes_nothing_and_ends_the_group(self):
        with self.server() as server:
            name, dtype, shape, data = self.other[0]
            for wrong, status, expected in (([*self.other[1:], ("no.such.weight", dtype, shape, data)], 400, "no.such.weight"),
                                            ([*self.other[1:], (name, dtype, [*shape, 1], data)], 400, "shape"), ([*self.other, self.other[0]], 400, "twice")):
                with self.trainer(server):
                    body = {"update_info": update_info(wrong, packed=True, packed_buffer_size_bytes=1)}
                    self.assertIn(expected, self.post(server, "/update_weights", body, status=status))
                    self.assertIn("init_weight_transfer_engine", self.post(server, "/update_weights", {"update_info": update_info(self.other)}, status=409))
                self.assertEqual(tokens(server), self.loaded_tokens)
                self.assertEqual(weights_of(server)["version"], 0)

    def test_a_trainer_that_is_killed_leaves_a_server_that_refuses(self):
        with self.server(timeout=60) as server:
            store = TcpStore()
            port = store.port
            store.close()
            code = f"""
import signal, sys
sys.path.insert(0, {HERE!r})
from nccl_trainer import TcpStore, Trainer
from nccl_test import NcclTest
from trainer_test import read_weights
store = TcpStore({port})
store.wait_for_workers(2)
trainer = Trainer(store)
sys.stdin.readline()
NcclTest.header, content = read_weights({os.path.join(TINY, "model.safetensors")!r})
trainer.send_packed(NcclTest.tensors_of(content)[:3], 1)
signal.pause()
"""
            with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as process:
                self.post(server, "/init_weight_transfer_engine", {"init_info": self.init_info(store)["init_info"] | {"master_port": port}})
                self.post(server, "/start_weight_update")
                begin = time.monotonic()
                info = update_info(self.other, packed=True, packed_buffer_size_bytes=1)
                with self.beside(server, "/update_weights", {"update_info": info}, status=503):
                    process.stdin.write("\n")
                    process.stdin.flush()
                    while not weights_of(server)["missing"]:
                        time.sleep(0.01)
                    process.kill()
                self.assertEqual(process.wait(), -signal.SIGKILL)
            self.assertLess(time.monotonic() - begin, 20)  # sooner than --trainer-timeout: the store's connection has ended
            status, text = complete(server)
            self.assertEqual(status, 503, text)
            weights = weights_of(server)
            self.assertEqual(weights["update"], "given_up")
            missing = [name for name, *_ in self.other]
            self.assertIn(weights["missing"], [missing[brought:] for brought in (1, 2, 3)])
            self.post(server, "/update_weights", {"update_info": update_info(self.other)}, status=409)
            with self.trainer(server) as trainer:  # another one brings all of them
                self.post(server, "/start_weight_update")
                with self.beside(server, "/update_weights", {"update_info": update_info(self.other)}):
                    trainer.send(self.other)
                self.post(server, "/finish_weight_update")
            self.assertEqual(tokens(server), self.other_tokens)

    def test_a_trainer_that_stops_is_waited_for_no_longer_than_its_time(self):
        with self.server(timeout=1.5) as server:
            with self.trainer(server) as trainer:
                self.post(server, "/start_weight_update")
                begin = time.monotonic()
                info = update_info(self.other, packed=True, packed_buffer_size_bytes=1)
                with self.beside(server, "/update_weights", {"update_info": info}, status=503) as texts:
                    trainer.send_packed(self.other[:2], 1)
                    for _ in range(5):  # it answers meanwhile
                        self.assertEqual(get(server, "/server_info")[0], 200)
                self.assertIn("did not broadcast within 1.5 s", texts[0][2])
                self.assertLess(time.monotonic() - begin, 20)
                self.assertEqual(complete(server)[0], 503)
                self.assertIn(weights_of(server)["missing"], [[name for name, *_ in self.other[brought:]] for brought in (1, 2)])
            self.post(server, "/wake_up")
            self.assertEqual(tokens(server), self.loaded_tokens)
            # One that sends nothing at all costs nothing.
            with self.trainer(server):
                with self.beside(server, "/update_weights", {"update_info": update_info(self.other)}, status=503):
                    pass
                self.assertEqual(tokens(server), self.loaded_tokens)

    def test_groups_that_cannot_be_made(self):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (os.path.join(folder, "executed"),)

        with tempfile.TemporaryDirectory() as folder, self.server(timeout=1.5) as server:
            # No listener, a silent one, and another service.
            unheard = {"init_info": self.init_info(TcpStore())["init_info"] | {"master_port": free_port()}}
            self.assertIn("Connection refused", self.post(server, "/init_weight_transfer_engine", unheard, status=503))
            with socket.create_server(("127.0.0.1", 0)) as silent:
                there = types.SimpleNamespace(port=silent.getsockname()[1])
                self.assertIn("within 1.5 s", self.post(server, "/init_weight_transfer_engine", self.init_info(there), status=503))
            self.assertIn("TCPStore", self.post(server, "/init_weight_transfer_engine", self.init_info(server), status=400))
            # Pickles that are no name of a group.
            for value in (pickle.dumps(Evil()), pickle.dumps(b"x" * 128), pickle.dumps({"a": 1}), b"", b"x" * 5000):
                store = TcpStore()
                store.set("broadcast_from/0/0", value)
                text = self.post(server, "/init_weight_transfer_engine", self.init_info(store), status=400)
                self.assertIn("5000 bytes" if len(value) == 5000 else "never read", text)
                store.close()
            self.assertEqual(os.listdir(folder), [])
            # A name that never comes, and a group whose first rank never does.
            store = TcpStore()
            self.assertIn("was not made within 1.5 s", self.post(server, "/init_weight_transfer_engine", self.init_info(store), status=503))
            for field, value in (("master_port", 0), ("master_port", "1"), ("world_size", 1), ("rank_offset", 0), ("rank_offset", 2), ("master_address", "")):
                self.assertIn(field, self.post(server, "/init_weight_transfer_engine", self.init_info(store, **{field: value}), status=400))
            self.post(server, "/update_weights", {"update_info": update_info(self.other)}, status=409)
            self.assertEqual(tokens(server), self.loaded_tokens)

    def test_a_server_that_waits_for_a_trainer_ends_at_once(self):
        with self.server() as server, self.trainer(server):
            begin = time.monotonic()
            with self.beside(server, "/update_weights", {"update_info": update_info(self.other)}, status=503):
                while weights_of(server)["update"] != "open":
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                server.process.wait(timeout=30)
            self.assertLess(time.monotonic() - begin, 15)

    def test_what_has_no_such_weights_says_so(self):
        with Server("--trainer", "--dtype", "f32") as server:  # real NCCL, if there is one, writes to GPUs alone
            self.assertIn("NCCL writes to the memory of GPUs alone", self.post(server, "/init_weight_transfer_engine", self.init_info(TcpStore()), status=501))
        with self.server("--device", "cpu,cpu") as server:
            self.assertIn("2 ranks", self.post(server, "/init_weight_transfer_engine", self.init_info(TcpStore()), status=501))

    def sglang_info(self, tensors, **fields):
        return {"names": [name for name, *_ in tensors], "dtypes": [dtype for _, dtype, *_ in tensors], "shapes": [shape for _, _, shape, _ in tensors],
                "group_name": "slime-pp_0"} | fields

    def test_groups_of_sglang(self):
        """Each message is an update of its own; the group has a name once the trainer broadcasts."""
        with self.server() as server:
            store = TcpStore()
            group = self.init_info(store)["init_info"] | {"group_name": "slime-pp_0", "backend": "nccl"}
            with self.beside(server, "/init_weights_update_group", group):
                store.wait_for_workers(2)
            trainer = TorchTrainer(store, "slime-pp_0")
            half = len(self.other) // 2
            for some in (self.other[:half], self.other[half:]):
                with self.beside(server, "/update_weights_from_distributed", self.sglang_info(some, weight_version="7", flush_cache=True)):
                    trainer.send(some)
            self.assertEqual(tokens(server), self.other_tokens)
            self.assertEqual(get(server, "/get_weight_version")[2], {"weight_version": "7"})
            with self.beside(server, "/update_weights_from_distributed", self.sglang_info(self.loaded, load_format="flattened_bucket", abort_all_requests=True)):
                self.assertEqual(trainer.send_packed(self.loaded, 1 << 40), 1)
            self.assertEqual(tokens(server), self.loaded_tokens)
            # A trainer that ends before it broadcasts has changed nothing, and another group takes its place.
            trainer.close()
            store.close()
            self.post(server, "/update_weights_from_distributed", self.sglang_info(self.other), status=503)
            self.assertEqual(tokens(server), self.loaded_tokens)
            store = TcpStore()
            with self.beside(server, "/init_weights_update_group", self.init_info(store)["init_info"]):
                store.wait_for_workers(2)
            with self.beside(server, "/update_weights_from_distributed", self.sglang_info(self.other, group_name="weight_update_group")):
                TorchTrainer(store, "weight_update_group").send(self.other)
            self.assertEqual(tokens(server), self.other_tokens)
            self.post(server, "/destroy_weights_update_group", {"group_name": "weight_update_group"})
            self.assertIn("there is no group", self.post(server, "/update_weights_from_distributed", self.sglang_info(self.other), status=409))
            store.close()


if __name__ == "__main__":
    unittest.main()
