"""`coppice serve --trainer` over real connections: weights by shared memory and from a folder, a trainer that dies, and the rights of keys."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from server_process import TINY, Server, coppice

CONTROL = ["/pause", "/resume", "/abort_requests", "/sleep", "/wake_up", "/reset_prefix_cache", "/init_weight_transfer_engine", "/start_weight_update",
           "/update_weights", "/finish_weight_update", "/update_weight_version", "/weight_checker", "/collective_rpc", "/pause_generation",
           "/continue_generation", "/abort_request", "/update_weights_from_disk", "/init_weights_update_group", "/update_weights_from_distributed",
           "/release_memory_occupation", "/resume_memory_occupation"]
TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def read_weights(path):
    """(header, bytes of all tensors) of a .safetensors file."""
    with open(path, "rb") as file:
        content = file.read()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, bytearray(content[8 + size :])


def write_folder(folder, header, content):
    shutil.copy(os.path.join(TINY, "config.json"), folder)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + bytes(content))


def reversed_matrices(header, content):
    """Other weights: each matrix's elements in reverse order."""
    other = bytearray(content)
    for tensor in header.values():
        begin, end = tensor["data_offsets"]
        if len(tensor["shape"]) > 1:
            size = 4 if tensor["dtype"] == "F32" else 2
            elements = [content[at : at + size] for at in range(begin, end, size)]
            other[begin:end] = b"".join(reversed(elements))
    return other


class Segment:
    """A file of /dev/shm, which is what POSIX shared memory is."""

    def __init__(self, content):
        self.name = f"coppice-trainer-test-{os.getpid()}-{time.monotonic_ns()}"
        with open("/dev/shm/" + self.name, "wb") as file:
            file.write(content)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.remove("/dev/shm/" + self.name)


def tensors_of(header, names):
    return [{"name": name, "dtype": TORCH_NAMES[header[name]["dtype"]], "shape": header[name]["shape"], "offset": header[name]["data_offsets"][0]}
            for name in names]


PROMPT = list(range(1, 30))
REQUEST = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def get(server, path, headers=None):
    """(status, text, object) of a GET."""
    status, _, text = server.ask("GET", path, headers=headers)
    return status, text, json.loads(text)


def complete(server):
    """(status, text) of the request."""
    status, _, text = server.ask("POST", "/v1/completions", REQUEST)
    return status, text


def tokens(server):
    status, text = complete(server)
    assert status == 200, text
    return json.loads(text)["choices"][0]["token_ids"]


def weights_of(server):
    return get(server, "/server_info")[2]["weights"]


class TrainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.header, cls.loaded = read_weights(os.path.join(TINY, "model.safetensors"))
        cls.other = reversed_matrices(cls.header, cls.loaded)
        cls.folder = tempfile.TemporaryDirectory()
        write_folder(cls.folder.name, cls.header, cls.other)
        with Server("--dtype", "f32") as server:
            cls.loaded_tokens = tokens(server)
        with Server("--dtype", "f32", model=cls.folder.name) as server:
            cls.other_tokens = tokens(server)
        assert cls.loaded_tokens != cls.other_tokens

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def post(self, server, path, body=None, status=200, headers=None):
        got, _, text = server.ask("POST", path, body if body is not None else {}, headers)
        self.assertEqual(got, status, (path, text))
        return json.loads(text)

    def update(self, server, content, names, checksum=False):
        with Segment(content) as segment:
            self.post(server, "/update_weights", {"update_info": {"segment": segment.name, "tensors": tensors_of(self.header, names), "checksum": checksum}})

    def test_without_the_option_there_are_no_such_routes(self):
        with Server() as server:
            for path in CONTROL:
                self.post(server, path, status=404)
            for path in ("/is_paused", "/is_sleeping", "/get_world_size", "/weight_info", "/health_generate", "/get_weight_version", "/flush_cache"):
                self.assertEqual(get(server, path)[0], 404, path)
            status, text, info = get(server, "/server_info")
            self.assertEqual(status, 200)
            self.assertIsNone(info["vllm_config"]["weight_transfer_config"])
            self.assertNotIn(os.path.dirname(TINY), text)
            self.assertEqual(get(server, "/get_model_info")[2]["is_generation"], True)

    def test_weights_come_in_buckets_and_from_a_folder(self):
        names = sorted(self.header)
        with Server("--trainer", "--dtype", "f32") as server:
            self.assertEqual(tokens(server), self.loaded_tokens)
            info = get(server, "/weight_info")[2]
            self.assertEqual([weight["name"] for weight in info["weights"]], names)
            self.assertEqual({weight["name"]: weight["shape"] for weight in info["weights"]}, {name: self.header[name]["shape"] for name in names})
            self.post(server, "/start_weight_update")
            for at in range(0, len(names), 3):
                self.update(server, self.other, names[at : at + 3], checksum=True)
            self.assertEqual(weights_of(server)["missing"], [])
            self.assertEqual(self.post(server, "/finish_weight_update", {"weight_version": "one"})["weight_version"], "one")
            self.assertEqual(tokens(server), self.other_tokens)
            checksums = self.post(server, "/weight_checker", {"action": "checksum"})["checksums"]
            for name in names:
                begin, end = self.header[name]["data_offsets"]
                self.assertEqual(checksums[name], hashlib.sha256(self.other[begin:end]).hexdigest(), name)

            self.post(server, "/update_weights_from_disk", {"model_path": TINY, "weight_version": "two"})
            self.assertEqual(tokens(server), self.loaded_tokens)
            self.assertEqual(get(server, "/get_weight_version")[2], {"weight_version": "two"})
            self.post(server, "/update_weights_from_disk", {"model_path": "/no/such/folder"}, status=400)
            with Segment(self.other) as segment:
                unknown = [entry | {"name": "no.such.weight"} for entry in tensors_of(self.header, names[:1])]
                refused = self.post(server, "/update_weights", {"update_info": {"segment": segment.name, "tensors": unknown}}, status=400)
            self.assertEqual(refused["error"]["type"], "invalid_request_error")
            self.assertIn("no.such.weight", refused["error"]["message"])
            self.assertEqual(tokens(server), self.loaded_tokens)

    def test_a_trainer_that_dies_leaves_a_server_that_refuses(self):
        names = sorted(self.header)
        with Server("--trainer", "--trainer-timeout", 3, "--dtype", "f32") as server, Segment(self.other) as segment:
            trainer = f"""
import json, os, signal, urllib.request
def post(path, body):
    request = urllib.request.Request({server.url!r} + path, json.dumps(body).encode(), {{"Content-Type": "application/json"}})
    urllib.request.urlopen(request).read()
post("/start_weight_update", {{}})
post("/update_weights", {{"update_info": {{"segment": {segment.name!r}, "tensors": {tensors_of(self.header, names[:2])!r}}}}})
os.kill(os.getpid(), signal.SIGKILL)
"""
            self.assertEqual(subprocess.run([sys.executable, "-c", trainer], check=False).returncode, -signal.SIGKILL)
            self.assertEqual(weights_of(server)["update"], "open")
            status, text = complete(server)  # waits until the update is given up
            self.assertEqual(status, 503, text)
            self.assertIn("an update of weights ended half-way", text)
            self.assertEqual(complete(server)[0], 503)
            weights = weights_of(server)
            self.assertEqual(weights["update"], "given_up")
            self.assertEqual(weights["missing"], names[2:])
            # Another trainer brings some of them, and then all.
            self.post(server, "/start_weight_update")
            self.update(server, self.other, names[1:])
            self.post(server, "/finish_weight_update", status=409)
            self.assertEqual(weights_of(server)["missing"], names[:1])
            self.assertEqual(complete(server)[0], 503)
            self.post(server, "/start_weight_update")
            self.update(server, self.other, names)
            self.post(server, "/finish_weight_update")
            self.assertEqual(tokens(server), self.other_tokens)

    def test_the_models_file_mends_half_an_update(self):
        with Server("--trainer", "--trainer-timeout", 2, "--dtype", "f32") as server:
            self.post(server, "/start_weight_update")
            self.update(server, self.other, sorted(self.header)[:4])
            self.assertEqual(complete(server)[0], 503)
            self.post(server, "/wake_up")
            self.assertEqual(tokens(server), self.loaded_tokens)

    def test_sleep_and_pickled_payloads(self):
        with Server("--trainer", "--dtype", "f32") as server:
            for level in (1, 2, 2):
                self.post(server, f"/sleep?level={level}")
                self.assertTrue(get(server, "/is_sleeping")[2]["is_sleeping"])
                self.post(server, "/wake_up")
                self.assertEqual(tokens(server), self.loaded_tokens)
            refused = self.post(server, "/update_weights_from_tensor", {"serialized_named_tensors": ["gASV"]}, status=400)
            self.assertIn("pickled payload", refused["error"]["message"])
            self.post(server, "/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": 1}, status=400)
            self.assertEqual(get(server, "/health_generate")[0], 200)
            self.assertEqual(get(server, "/get_world_size")[2], {"world_size": 1})

    def test_skyrls_order(self):
        """The calls of its client to each server in a step, but for weights, which come by this server's message."""
        names = sorted(self.header)
        with Server("--trainer", "--dtype", "f32") as server, Segment(self.other) as segment:
            status, _, text = server.ask("GET", "/get_world_size", {})
            self.assertEqual((status, json.loads(text)), (200, {"world_size": 1}))
            self.post(server, "/init_weight_transfer_engine", {"init_info": {"transport": "shared_memory"}})
            self.post(server, "/sleep", {"level": 2})
            self.post(server, "/wake_up", {"tags": ["weights"]})
            info = {"segment": segment.name, "tensors": tensors_of(self.header, names)}
            self.post(server, "/collective_rpc", {"method": "skyrl_start_weight_update"})
            self.post(server, "/update_weights", {"update_info": info})
            self.post(server, "/collective_rpc", {"method": "skyrl_finish_weight_update"})
            self.post(server, "/wake_up", {"tags": ["kv_cache"]})
            self.post(server, "/reset_prefix_cache", {"reset_running_requests": False})
            self.assertEqual(tokens(server), self.other_tokens)
            # aiohttp, by which SkyRL asks, gives a request without a body a type.
            untyped = {"Content-Type": "application/octet-stream"}
            self.assertEqual([server.ask("POST", path, headers=untyped)[0] for path in ("/pause?mode=keep", "/resume")], [200, 200])
            self.assertEqual(server.ask("POST", "/pause?mode=keep", headers={"Content-Type": "text/plain"})[0], 415)
            # Asynchronous: what runs goes on.
            status, _, text = server.ask("POST", "/pause?mode=keep&clear_cache=false")
            self.assertEqual((status, json.loads(text)), (200, {"status": "paused"}))
            self.post(server, "/collective_rpc", {"method": "start_weight_update", "kwargs": {"is_checkpoint_format": True}})
            self.post(server, "/collective_rpc", {"method": "update_weights", "kwargs": {"update_info": info}})
            self.post(server, "/collective_rpc", {"method": "finish_weight_update"})
            self.assertTrue(get(server, "/is_paused")[2]["is_paused"])
            self.assertEqual(server.ask("POST", "/resume")[0], 200)
            self.assertEqual(tokens(server), self.other_tokens)

    def test_slimes_order(self):
        with Server("--trainer", "--dtype", "f32") as server:
            self.assertEqual(get(server, "/health_generate")[0], 200)
            info = get(server, "/server_info")[2]
            self.assertEqual((info["tp_size"], info["pp_size"], info["dp_size"]), (1, 1, 1))
            for _ in range(2):
                self.post(server, "/release_memory_occupation")
                self.post(server, "/resume_memory_occupation", {"tags": ["weights"]})
                self.post(server, "/pause_generation", {"mode": "retract"})
                self.assertEqual(get(server, "/flush_cache")[0], 200)
                self.post(server, "/update_weights_from_disk", {"model_path": self.folder.name, "weight_version": "3"})
                self.post(server, "/continue_generation")
                self.post(server, "/resume_memory_occupation", {"tags": ["kv_cache"]})
                self.assertEqual(get(server, "/get_weight_version")[2], {"weight_version": "3"})
                self.assertEqual(tokens(server), self.other_tokens)
            self.assertEqual(self.post(server, "/abort_request", {"abort_all": True})["num_aborted"], 0)

    def test_a_paused_server_ends_at_once(self):
        with Server("--trainer") as server:
            self.post(server, "/pause?mode=keep")
            answers = []
            waiting = threading.Thread(target=lambda: answers.append(complete(server)[0]))
            waiting.start()
            server.wait_for("coppice_http_requests_active", 1)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(timeout=30)
            waiting.join()
            self.assertEqual(answers, [503])
            self.assertLess(time.monotonic() - begin, 10)

    def test_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")

            def write(*lines):
                with open(path, "w", encoding="utf-8") as file:
                    file.writelines(f"{name} {hashlib.sha256(name.encode()).hexdigest()}{options}\n" for name, options in lines)

            write(("user", ""), ("admin", " role=admin"))
            ended = coppice("serve", "--model", TINY, "--trainer", "--api-keys", path)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn("role=trainer", ended.stderr)
            ended = coppice("serve", "--model", TINY, "--trainer", "--host", "0.0.0.0", "--allow-public")
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn("role=trainer", ended.stderr)
            write(("user", ""), ("admin", " role=admin"), ("trainer", " role=trainer"))
            with Server("--trainer", "--api-keys", path) as server:
                for key, status in (("user", 403), ("admin", 403), ("trainer", 200), ("other", 401)):
                    headers = {"Authorization": f"Bearer {key}"}
                    for target in ("/pause?mode=keep", "/resume"):
                        self.post(server, target, status=status, headers=headers)
                    received, _, info = get(server, "/server_info", headers)
                    self.assertEqual(received, 401 if status == 401 else 200)
                    self.assertEqual("weights" in info, key == "trainer")
                self.check_aborts_of_keys(server)

    def check_aborts_of_keys(self, server):
        """A user's key ends its own generations, a trainer's and an admin's those of all keys, though their ids are the same."""
        bearer = {key: {"Authorization": f"Bearer {key}"} for key in ("user", "admin", "trainer")}
        self.post(server, "/pause?mode=keep", headers=bearer["trainer"])
        answers = {}

        def generate(key, rid):
            body = {"input_ids": [1, 2, 3], "rid": rid, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
            answers[key, rid] = self.post(server, "/generate", body, headers=bearer[key])["meta_info"]["finish_reason"]["type"]

        threads = [threading.Thread(target=generate, args=call) for call in (("user", "a"), ("admin", "a"), ("trainer", "b"))]
        for thread in threads:
            thread.start()
        while "coppice_http_requests_active 3\n" not in server.ask("GET", "/metrics", headers=bearer["admin"])[2]:
            time.sleep(0.01)
        self.assertEqual(self.post(server, "/abort_request", {"rid": "b"}, headers=bearer["user"])["num_aborted"], 0)
        self.assertEqual(self.post(server, "/abort_request", {"abort_all": True}, headers=bearer["user"])["num_aborted"], 1)
        while ("user", "a") not in answers:  # it counts until it has ended
            time.sleep(0.01)
        self.assertEqual(self.post(server, "/abort_request", {"rid": "a"}, headers=bearer["user"])["num_aborted"], 0)
        self.assertEqual(self.post(server, "/abort_request", {"rid": "a"}, headers=bearer["trainer"])["num_aborted"], 1)
        self.assertEqual(self.post(server, "/abort_requests", {"request_ids": ["b"]}, headers=bearer["admin"])["num_aborted"], 1)
        for thread in threads:
            thread.join()
        self.assertEqual(answers, {("user", "a"): "abort", ("admin", "a"): "abort", ("trainer", "b"): "abort"})

    def test_stored_weights_cannot_be_replaced(self):
        ended = coppice("serve", "--model", TINY, "--trainer", "--weights", "stored")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--weights stored", ended.stderr)


if __name__ == "__main__":
    unittest.main()
