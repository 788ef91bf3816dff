"""Weights by NCCL broadcast as vLLM's and TRL's own code sends them, against `coppice serve --trainer` on a CPU: vLLM 0.26's StatelessProcessGroup,
PyNcclCommunicator and NCCLWeightTransferEngine over PyTorch's TCPStore, and TRL's GRPOTrainer with its own VLLMClient. The library is the fake of
COPPICE_FAKE_NCCL, and torch.cuda's streams are stood in for; the files of vLLM and TRL are as they are on PyPI."""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import zipfile
from datetime import timedelta

from long_packages import install_or_skip

from server_process import ROOT, Server, free_port

VLLM = "0.26.0"
FOLDER = os.path.join(ROOT, "build", "vllm-transfer")
FAKE = os.environ["COPPICE_FAKE_NCCL"]
FILES = ["distributed/utils.py", "distributed/device_communicators/pynccl.py", "distributed/device_communicators/pynccl_wrapper.py",
         *(f"distributed/weight_transfer/{name}.py" for name in ("base", "clients", "nccl_common", "nccl_engine", "packed_tensor"))]
# Modules that those files import of the rest of vLLM, of which they use little here.
REST = {
    "__init__": f"__version__ = '{VLLM}'\nLLM = RequestOutput = SamplingParams = None", "sampling_params": "StructuredOutputsParams = None",
    "envs": "VLLM_DISABLE_PYNCCL = VLLM_USE_NCCL_SYMM_MEM = False",
    "logger": "import logging\ndef init_logger(name):\n    logger = logging.getLogger(name)\n    logger.info_once = logger.debug\n    return logger",
    "platforms": "import torch\nclass current_platform:\n    fp8_dtype = staticmethod(lambda: torch.float8_e4m3fn)\n    is_rocm = staticmethod(lambda: False)",
    "config/__init__": "", "config/parallel": "ParallelConfig = object", "config/weight_transfer": "WeightTransferConfig = object",
    "distributed/__init__": "", "distributed/device_communicators/__init__": "", "distributed/weight_transfer/__init__": "", "utils/__init__": "",
    "utils/network_utils": "get_ip = lambda: '127.0.0.1'\nget_tcp_uri = None", "utils/system_utils": "suppress_stdout = None",
    "utils/torch_utils": "class current_stream:\n    cuda_stream = 0\n    synchronize = staticmethod(lambda: None)",
    "utils/nccl": f"find_nccl_library = lambda: {os.path.join(FAKE, 'libnccl.so.2')!r}",
}


def unpack_vllm():
    """Those files of PyPI's wheel, of 300 MB, among modules that stand for the rest."""
    if not os.path.exists(os.path.join(FOLDER, "done")):
        shutil.rmtree(FOLDER, ignore_errors=True)
        with tempfile.TemporaryDirectory() as wheels:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", wheels, f"vllm=={VLLM}"]
            if subprocess.run(command, check=False).returncode != 0:
                print(f"skipped: vllm {VLLM} could not be downloaded")
                sys.exit(77)
            with zipfile.ZipFile(os.path.join(wheels, os.listdir(wheels)[0])) as wheel:
                wheel.extractall(FOLDER, [f"vllm/{name}" for name in FILES] + [f"vllm-{VLLM}.dist-info/METADATA"])
        open(os.path.join(FOLDER, "done"), "w", encoding="utf-8").close()
    for name, text in REST.items():
        path = os.path.join(FOLDER, "vllm", name + ".py")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return FOLDER


sys.path[1:1] = [unpack_vllm()]
install_or_skip("trl", __file__)

import trl_test  # noqa: E402, I001: it finds the packages
import torch  # noqa: E402


class HostStream:
    def synchronize(self):
        pass


def stand_in_for_cuda():
    """Where vLLM and TRL name CUDA: devices are the CPU, streams do their work at once."""
    torch.accelerator.current_device_index = lambda: torch.device("cpu")
    torch.accelerator.device_index = lambda index: contextlib.nullcontext()
    torch.cuda.set_device = lambda device: None
    torch.cuda.Stream, torch.cuda.current_stream = HostStream, HostStream
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    HostStream.cuda_stream = 0


stand_in_for_cuda()

from torch.distributed import TCPStore  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator  # noqa: E402
from vllm.distributed.utils import StatelessProcessGroup  # noqa: E402
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient  # noqa: E402
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine  # noqa: E402

import tiny_llama  # noqa: E402
import trl_grpo  # noqa: E402


class OwnClient(VLLMClient):
    """TRL's client, which asks for a CUDA device by name."""

    def init_communicator(self, device=0):
        super().init_communicator("cuda:0")


def run_beside(action):
    """Runs it on a thread; the result's join() returns when it is done, and raises what it raised."""
    errors = []

    def run():
        try:
            action()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join()
        if errors:
            raise errors[0]

    return types.SimpleNamespace(join=join)


class TransferTest(unittest.TestCase):
    def server(self, folder):
        return Server("--trainer", "--dtype", "f32", model=folder, environment={"LD_LIBRARY_PATH": FAKE})

    def assert_says(self, server, model, prompt=(2, 3, 4, 5, 6)):
        """The server's greedy text is that of transformers with the model's weights."""
        status, answer = server.complete(prompt=list(prompt), temperature=0, max_tokens=12, return_token_ids=True)
        self.assertEqual(status, 200, answer)
        expected, _, margins = tiny_llama.greedy(model, list(prompt), 12)
        certain = next((i for i, margin in enumerate(margins) if margin < 1e-4), len(margins))
        self.assertGreater(certain, 4)
        self.assertEqual(answer["choices"][0]["token_ids"][:certain], expected[:certain])

    def test_vllms_client_and_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            tiny_llama.make_model(1).save_pretrained(folder)
            with self.server(folder) as server:
                client = HTTPVLLMWeightSyncClient(server.url)
                init = {"master_address": "127.0.0.1", "master_port": free_port(), "rank_offset": 1, "world_size": 2}
                asked = run_beside(lambda: client.init_weight_transfer_engine(init))
                group = NCCLWeightTransferEngine.trainer_init(init)
                asked.join()
                for seed, fields in ((2, {}), (3, {"packed": True}), (4, {"packed": True, "packed_buffer_size_bytes": 30_000, "packed_num_buffers": 3})):
                    model = tiny_llama.make_model(seed)
                    parameters = list(model.named_parameters())
                    client.start_weight_update()
                    info = {"names": [name for name, _ in parameters], "dtype_names": [str(p.dtype).removeprefix("torch.") for _, p in parameters],
                            "shapes": [list(p.shape) for _, p in parameters]} | fields
                    asked = run_beside(lambda: client.update_weights(info))
                    NCCLWeightTransferEngine.trainer_send_weights(((name, p.data) for name, p in parameters), {"group": group} | fields)
                    asked.join()
                    client.finish_weight_update()
                    self.assert_says(server, model)

    def test_both_servers_of_torchs_store(self):
        with tempfile.TemporaryDirectory() as folder:
            tiny_llama.make_model(1).save_pretrained(folder)
            with self.server(folder) as server:
                for libuv in (False, True):
                    port = free_port()
                    init = {"master_address": "localhost", "master_port": port, "rank_offset": 1, "world_size": 2}
                    asked = run_beside(lambda: HTTPVLLMWeightSyncClient(server.url).init_weight_transfer_engine(init))
                    store = TCPStore("localhost", port, world_size=2, is_master=True, timeout=timedelta(seconds=60), use_libuv=libuv)
                    PyNcclCommunicator(StatelessProcessGroup(rank=0, world_size=2, store=store), device=torch.device("cpu")).destroy()
                    asked.join()

    def test_grpo_with_trls_own_client(self):
        logging.getLogger("trl").setLevel(logging.ERROR)
        import trl.generation.vllm_generation

        trl.generation.vllm_generation.VLLMClient = OwnClient
        steps = 6
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as output:
            model, tokenizer = trl_test.make_model(folder)
            with self.server(folder) as server:
                seen = []

                def reward(completion_ids, **_):
                    self.assert_says(server, model)  # between the update of weights and the trainer's next step both have the same
                    seen.append(server.ask("GET", "/server_info")[2])
                    return tiny_llama.rewards_of(completion_ids)

                trainer = trl_grpo.train(model, tokenizer, server.url, tiny_llama.PROMPTS * 16, reward, steps, output, client=None,
                                         vllm_group_port=free_port(), seed=1)
                self.assertEqual(len(seen), steps)
                self.assertIn(f'"version":{steps},', seen[-1])
                trainer.vllm_generation.vllm_client.close_communicator()


if __name__ == "__main__":
    unittest.main()
