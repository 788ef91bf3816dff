"""examples/trainers/slime_coppice.py: what slime's trainer calls of its engine, in its order, and the rollouts that slime sends, over a real server."""

import os
import sys
import tempfile
import threading
import types
import unittest

from server_process import ROOT, TINY, Server, free_port
from trainer_test import PROMPT, read_weights, reversed_matrices, tokens, write_folder

sys.path.insert(0, os.path.join(ROOT, "examples", "trainers"))

import slime_coppice  # noqa: E402

# As slime/rollout/sglang_rollout.py makes them from its arguments.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 8, "stop": None, "stop_token_ids": None, "skip_special_tokens": False,
            "no_stop_trim": True, "spaces_between_special_tokens": False, "sampling_seed": 7}


class SlimeAdapterTest(unittest.TestCase):
    def setUp(self):
        header, loaded = read_weights(os.path.join(TINY, "model.safetensors"))
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        write_folder(self.folder, header, reversed_matrices(header, loaded))

    def engine(self, server, **args):
        engine = slime_coppice.CoppiceEngine(types.SimpleNamespace(**args), rank=0, num_gpus_per_engine=1)
        engine.init(dist_init_addr=f"127.0.0.1:{server.port}", port=server.port, nccl_port=None, host="127.0.0.1")
        return engine

    def test_slimes_module_is_replaced(self):
        slime_coppice.install()
        self.assertIs(sys.modules["slime.backends.sglang_utils.sglang_engine"].SGLangEngine, slime_coppice.CoppiceEngine)

    def test_a_step_of_training(self):
        with Server("--dtype", "f32", model=self.folder) as server:
            expected = tokens(server)
        with Server("--trainer", "--dtype", "f32", "--logprobs-mode", "processed_logprobs") as server:
            engine = self.engine(server)
            self.assertEqual(engine.get_url(), server.url)
            self.assertTrue(engine.health_generate())
            before = tokens(server)
            self.assertNotEqual(before, expected)
            # A rollout: tokens and their log-probabilities come together.
            answer = engine.ask("POST", "/generate", {"input_ids": PROMPT, "sampling_params": SAMPLING, "return_logprob": True})
            entries = answer["meta_info"]["output_token_logprobs"]
            self.assertEqual([entry[1] for entry in entries], answer["output_ids"])
            self.assertEqual(answer["meta_info"]["finish_reason"]["type"], "length")
            self.assertEqual(answer["meta_info"]["weight_version"], "0")
            # The trainer's step: memory, weights, generation goes on.
            engine.release_memory_occupation()
            engine.resume_memory_occupation(tags=["weights"])
            engine.pause_generation()
            engine.flush_cache()
            engine.update_weights_from_disk(self.folder, weight_version=1)
            engine.post_process_weights(restore_weights_before_load=False, post_process_quantization=True)
            engine.continue_generation()
            engine.resume_memory_occupation(tags=["kv_cache"])
            self.assertEqual(engine.get_weight_version(), "1")
            self.assertEqual(tokens(server), expected)
            self.assertIn("checksums", engine.check_weights("checksum"))
            engine.shutdown()

    def test_rollouts_are_cut_off(self):
        with Server("--trainer") as server:
            engine = self.engine(server)
            engine.ask("POST", "/pause_generation", {"mode": "in_place"})
            answers = []
            body = {"input_ids": PROMPT, "sampling_params": SAMPLING, "rid": "mine"}
            waiting = threading.Thread(target=lambda: answers.append(engine.ask("POST", "/generate", body)))
            waiting.start()
            server.wait_for("coppice_http_requests_active", 1)
            self.assertEqual(engine.abort_request("other"), 0)
            self.assertEqual(engine.abort_request("mine"), 1)
            waiting.join()
            self.assertEqual(answers[0]["meta_info"]["finish_reason"]["type"], "abort")
            self.assertEqual(engine.abort_request(), 0)

    def test_what_is_not_there_says_so(self):
        with self.assertRaisesRegex(NotImplementedError, "prefill"):
            slime_coppice.CoppiceEngine(types.SimpleNamespace(), rank=0, worker_type="prefill")
        with Server() as server, self.assertRaisesRegex(RuntimeError, "coppice serve --trainer"):
            self.engine(server)
        with Server("--trainer") as server:
            engine = self.engine(server)
            with self.assertRaisesRegex(NotImplementedError, "update-weight-transport disk"):
                engine.update_weights_from_tensor(serialized_named_tensors=[])
            with self.assertRaisesRegex(RuntimeError, "answered 409.*there is no group"):
                engine.update_weights_from_distributed(["a"], ["torch.float32"], [[1]], "g")
            with self.assertRaisesRegex(NotImplementedError, "'delta'"):
                engine.update_weights_from_disk(self.folder, load_format="delta")
            with self.assertRaisesRegex(RuntimeError, "answered 400.*model_path"):
                engine.update_weights_from_disk("")

    def test_it_is_made_known_to_a_router(self):
        with Server("--trainer") as server, self.assertRaises(OSError):  # no process listens there
            engine = slime_coppice.CoppiceEngine(types.SimpleNamespace(), rank=0)
            engine.init(f"127.0.0.1:{server.port}", server.port, host="127.0.0.1", router_ip="127.0.0.1", router_port=free_port())


if __name__ == "__main__":
    unittest.main()
