"""`coppice serve --trainer` on a GPU: weights that lie in the memory of another process on that GPU, named by CUDA IPC handles. Skipped
where there is no GPU."""

import importlib.util
import json
import os
import sys
import unittest

from server_process import ROOT, TINY, Server
from trainer_test import read_weights, reversed_matrices, tensors_of, tokens, weights_of

sys.path.insert(0, os.path.join(ROOT, "examples", "trainers"))

import cuda_ipc  # noqa: E402


def device_memory(content):
    memory = cuda_ipc.DeviceMemory(len(content))
    memory.write(content)
    return memory


class TrainerGpuTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            cuda_ipc.driver()
        except OSError:
            print("no CUDA driver: skipped")
            sys.exit(77)
        cls.header, cls.loaded = read_weights(os.path.join(TINY, "model.safetensors"))
        cls.other = reversed_matrices(cls.header, cls.loaded)

    def post(self, server, path, body, status=200):
        got, _, text = server.ask("POST", path, body)
        self.assertEqual(got, status, (path, text))
        return json.loads(text)

    def info(self, pointer, names):
        """The body of /update_weights for tensors that lie from `pointer` on as they lie in the model's file."""
        info = cuda_ipc.share(pointer)
        offset, tensors = info.pop("offset"), tensors_of(self.header, names)
        for tensor in tensors:
            tensor["offset"] += offset
        return {"update_info": info | {"tensors": tensors}}

    def test_weights_in_the_memory_of_another_process(self):
        names = sorted(self.header)
        with Server("--trainer") as server, device_memory(self.other) as memory:
            loaded = tokens(server)
            self.post(server, "/init_weight_transfer_engine", {"init_info": {"transport": "cuda_ipc"}})
            self.post(server, "/start_weight_update", {})
            for at in range(0, len(names), 3):
                body = self.info(memory.pointer, names[at : at + 3])
                body["update_info"]["checksum"] = True
                self.post(server, "/update_weights", body)
            self.post(server, "/finish_weight_update", {"weight_version": "other"})
            other = tokens(server)
            self.assertNotEqual(other, loaded)
            self.assertEqual(weights_of(server)["label"], "other")
            checksums = self.post(server, "/weight_checker", {"action": "checksum"})["checksums"]

            # The same by shared memory is the same weights: what a server that read them says, and their checksums.
            with open("/dev/shm/coppice-gpu-test", "wb") as file:
                file.write(self.other)
            try:
                update = {"segment": "coppice-gpu-test", "tensors": tensors_of(self.header, names), "checksum": True}
                self.post(server, "/update_weights", {"update_info": update})
            finally:
                os.remove("/dev/shm/coppice-gpu-test")
            self.assertEqual(tokens(server), other)
            self.assertEqual(self.post(server, "/weight_checker", {"action": "checksum"})["checksums"], checksums)

            memory.write(self.loaded)  # the server holds a copy: nothing changes
            self.assertEqual(tokens(server), other)
            self.post(server, "/update_weights", self.info(memory.pointer, names))
            self.assertEqual(tokens(server), loaded)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
    def test_weights_of_torch(self):
        import torch
        from shared_weights import CudaWeights

        dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
        with Server("--trainer") as server:
            loaded = tokens(server)
            weights = CudaWeights(lambda info: self.post(server, "/update_weights", {"update_info": info}), bucket_bytes=1 << 16)
            self.post(server, "/init_weight_transfer_engine", {"init_info": {"transport": weights.transport}})
            for content, differs in ((self.other, True), (self.loaded, False)):
                self.post(server, "/start_weight_update", {})
                for name, tensor in self.header.items():
                    begin, end = tensor["data_offsets"]
                    values = torch.frombuffer(bytearray(content[begin:end]), dtype=dtypes[tensor["dtype"]]).reshape(tensor["shape"])
                    weights.add(name, values.cuda())
                weights.flush()
                self.post(server, "/finish_weight_update", {})
                self.assertEqual(tokens(server) != loaded, differs)
            weights.close()

    def test_what_is_refused_changes_nothing(self):
        names = sorted(self.header)
        with Server("--trainer") as server, device_memory(self.other) as memory:
            loaded = tokens(server)
            beyond = self.info(memory.pointer, names)
            beyond["update_info"]["tensors"][0]["offset"] = 1 << 40
            self.assertIn("of the GPU's allocation", self.post(server, "/update_weights", beyond, status=400)["error"]["message"])
            for fields in ({"handle": "00" * 64}, {"device": "GPU-00000000-0000-0000-0000-000000000000"}, {"device": 64}):
                body = self.info(memory.pointer, names)
                body["update_info"].update(fields)
                self.post(server, "/update_weights", body, status=400)
            self.assertEqual(tokens(server), loaded)
            self.assertEqual(weights_of(server)["missing"], [])


if __name__ == "__main__":
    unittest.main()
