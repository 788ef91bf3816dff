"""`coppice inspect model` and `coppice inspect plan`: what they say, as text and as JSON, and what they refuse."""

import json
import math
import os
import tempfile
import unittest

from program import TINY, coppice


class InspectModelTest(unittest.TestCase):
    def test_text(self):
        done = coppice("inspect", "model", TINY, "--tensors")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("6 query heads, 2 KV heads, head_dim 16", "vocabulary 320, context 2048 tokens", "tokenizer: none", "M parameters", "of the whole context", "this machine has",
                      "model.layers.2.mlp.down_proj.weight"):
            self.assertIn(words, done.stdout)

    def test_what_layers_attend_to(self):
        for name, words in (("gemma3-a", ("window none, rope theta 1000000, scaling none", "5 local layers: window 16 tokens, rope theta 10000, scaling none")),
                            ("starcoder-a", ("learned positions",)), ("phi2-a", ("rope 16 elements of a head, theta 10000",)),
                            ("llama-yarn-a", ("rope theta 10000, scaling yarn",))):
            text = coppice("inspect", "model", os.path.join(os.path.dirname(TINY), name)).stdout
            for expected in words:
                self.assertIn(expected, text)
        model = json.loads(coppice("inspect", "model", os.path.join(os.path.dirname(TINY), "gemma3-a"), "--json").stdout)
        self.assertEqual((model["window"], model["local_layers"], model["local_window"], model["rotary_dim"]), (0, 5, 16, 32))

    def test_json(self):
        model = json.loads(coppice("inspect", "model", TINY, "--json").stdout)
        self.assertEqual((model["architecture"], model["num_layers"], model["kv_elements_per_token"]), ("llama", 3, 2 * 3 * 2 * 16))
        elements = sum(math.prod(tensor["shape"]) for tensor in model["tensors"])
        self.assertEqual((model["parameters"], model["stored_bytes"]), (elements, 2 * elements))  # stored as bf16
        self.assertEqual(model["kv_bytes_per_token"], {"bf16": 2 * 3 * 2 * 16 * 2, "f32": 2 * 3 * 2 * 16 * 4})
        # Half of what the weights leave free, in whole tokens.
        for dtype, size in (("bf16", 2), ("f32", 4)):
            left = max(model["free_memory_bytes"] - elements * size, 0) // 2
            self.assertEqual(model["kv_tokens_that_fit"][dtype], left // model["kv_bytes_per_token"][dtype])
        shapes = {tensor["name"]: tensor["shape"] for tensor in model["tensors"]}
        self.assertEqual(shapes["model.embed_tokens.weight"], [320, 96])

    def test_missing(self):
        done = coppice("inspect", "model", "/nonexistent")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))


class InspectPlanTest(unittest.TestCase):
    TREE = ["--tree", "512,64x4,16x4", "--qo-heads", "4", "--kv-heads", "2", "--head-dim", "64", "--threads", "1"]

    def test_text(self):
        done = coppice("inspect", "plan", *self.TREE, "--force-sharing")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("node 0 [0, 512), 16 branches", "shared", "KV read:", "predicted:", "measured here:"):
            self.assertIn(words, done.stdout)

    def test_bytes_of_each_sharing_mode(self):
        tokens = {}
        for mode in ("tree", "one-level", "store", "none"):
            force = ["--force-sharing"] if mode in ("tree", "one-level") else []
            plan = json.loads(coppice("inspect", "plan", *self.TREE, *force, "--sharing", mode, "--json", "--no-measure").stdout)["plan"]
            tokens[mode] = plan["kv_tokens_read"]
        each = 16 * (512 + 64 + 16)
        self.assertEqual(tokens, {"tree": 512 + 4 * 64 + 16 * 16, "one-level": 512 + 16 * (64 + 16), "store": each, "none": each})

    def test_plans_of_a_gpu_without_one(self):
        for tree, dense in (("2048,32x1024", True), ("256,32x4,256x4", True), ("64x3", False)):
            text = coppice("inspect", "plan", "--tree", tree, "--machine", "h200", "--force-sharing").stdout
            self.assertIn("machine h200, 132 workers", text)
            self.assertRegex(text, r"runs on 132 SMs: \d+ dense tasks on \d+ of them, \d+ stream tasks")
            self.assertEqual(" rows, dense" in text, dense and "0 dense tasks" not in text, text)
        dump = coppice("inspect", "plan", *self.TREE, "--machine", "h200", "--json").stdout
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(dump)
            file.flush()
            again = coppice("inspect", "plan", "--replay", file.name, "--no-measure").stdout
        self.assertEqual(again, coppice("inspect", "plan", *self.TREE, "--machine", "h200").stdout)
        tasks = json.loads(dump)["tasks"]
        self.assertEqual(tasks["sms"], 132)
        self.assertGreater(tasks["stream_tasks"] + tasks["dense_tasks"], 0)
        self.assertGreater(tasks["predicted_ns"], 0)
        self.assertEqual({item["item"] for item in tasks["ranges"]} - {item["id"] for item in json.loads(dump)["plan"]["items"]}, set())
        self.assertIn("machine zen5", coppice("inspect", "plan", *self.TREE, "--machine", "zen5", "--no-measure").stdout)

    def test_a_machine_that_was_not_measured_is_reported(self):
        text = coppice("inspect", "plan", *self.TREE, "--machine", "generic-x86", "--no-measure").stdout
        self.assertIn("machine generic-x86 (not measured: see coppice bench calibrate), 1 workers", text)
        self.assertNotIn("not measured", coppice("inspect", "plan", *self.TREE, "--machine", "zen5", "--no-measure").stdout)

    def test_alike_siblings_are_reported_once(self):
        text = coppice("inspect", "plan", "--tree", "512,64x4,16x4", "--no-measure").stdout
        self.assertEqual(text.count("branch "), 1, text)
        self.assertIn("  and 3 more like it, the last node 16\n", text)
        self.assertIn("    and 3 more like it, the last node 5\n", text)

    def test_replays_of_odd_traits(self):
        """A dump with odd traits of its backend is a plan or refused."""
        for options in ([], ["--deterministic"]):
            dump = json.loads(coppice("inspect", "plan", "--tree", "300,40x3,7x4", "--machine", "h200", "--no-measure", "--json", *options).stdout)
            for field, value, status in (("cooperative_warps", 0, 0), ("deterministic_unit", 0, 2), ("kv_tile", 2**32, 2), ("stream_warps", 1, 0)):
                with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                    json.dump({**dump, "traits": {**dump["traits"], field: value}}, file)
                    file.flush()
                    done = coppice("inspect", "plan", "--replay", file.name, "--no-measure")
                self.assertEqual(done.returncode, status, (options, field, done))
                if status == 2:
                    self.assertIn(f"'traits.{field}' is {value}", done.stderr)

    def test_replay(self):
        dump = coppice("inspect", "plan", *self.TREE, "--json").stdout
        self.assertGreater(json.loads(dump)["measured"]["median_ns"], 0)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(dump)
            file.flush()
            again = coppice("inspect", "plan", "--replay", file.name, "--json", "--no-measure").stdout
            measured = coppice("inspect", "plan", "--replay", file.name).stdout
        self.assertEqual(json.loads(again)["plan"], json.loads(dump)["plan"])
        self.assertIn("measured here:", measured)

    def test_a_plan_that_is_not_run_takes_no_kv(self):
        done = coppice("inspect", "plan", "--no-measure", "--tree", "300000000,1x4")  # the KV of its tokens has a terabyte
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_errors(self):
        for args, word in ((["--tree", "12,x3"], '"x3"'), (["--tree", "8", "--queries", "9"], "8 own tokens"), (["--head-dim", "7"], "7"),
                           (["--tree", "2147483647"], "2147483647 tokens"), (["--machine", "/dev/zero"], "more than 1048576 bytes"),
                           (["--replay", "/nonexistent"], "/nonexistent"), (["--replay", os.path.join(TINY, "config.json")], "plan dump")):
            with self.subTest(args):
                done = coppice("inspect", "plan", *args)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)
                self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
