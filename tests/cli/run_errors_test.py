"""`coppice run` on bad input: exit status 2, one line on stderr that says what is wrong, nothing on stdout."""

import json
import os
import shutil
import struct
import tempfile
import unittest

from program import TINY, coppice

GOOD = ["--model", TINY, "--prompt-ids", "1,2,3"]


class RunErrorsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def expect_error(self, args, *words, stdin=""):
        done = coppice("run", *args, stdin=stdin)
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def write(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def copy_of_tiny(self):
        path = os.path.join(self.folder, "model")
        shutil.copytree(TINY, path)
        return path

    def test_usage(self):
        self.expect_error([*GOOD, "-n", "0"], "-n is 0")
        self.expect_error([*GOOD, "--sharing", "forest"], "'forest'", "one-level")
        self.expect_error([*GOOD, "--dtype", "int3"], "'int3'", "bf16, f16 or f32")
        self.expect_error([*GOOD, "--page-size", "0"], "--page-size is 0", "1..256")
        self.expect_error([*GOOD, "--temperature", "-1"], "--temperature is -1")
        self.expect_error([*GOOD, "--temperature", "nan"], "--temperature: nan is not a number")
        self.expect_error([*GOOD, "--max-tokens", "0"], "--max-tokens is 0")
        self.expect_error([*GOOD, "--no-such-option"], "--no-such-option")
        self.expect_error([*GOOD, "--prompt", "text"], "more than one prompt")

    def test_machine_model(self):
        self.expect_error([*GOOD, "--machine", os.path.join(self.folder, "absent.json")], "absent.json", "coppice bench calibrate")
        gpu = os.path.join(os.path.dirname(__file__), "../../src/attention/machines/h200.json")
        self.expect_error([*GOOD, "--device", "cpu", "--machine", gpu], "h200.json", "is a GPU's", "coppice bench calibrate")
        text = self.write("text", b"5 6 7\n")
        engine = ["--model", TINY, "--device", "cpu"]
        for command in (["run", "--prompt-ids", "5"], ["chat"], ["serve", "--port", "0"], ["batch", text, text + ".out"], ["score", text], ["tree", text],
                        ["eval", "perplexity", text], ["bench", "decode", "--prompt-tokens", "4"], ["bench", "throughput", "--requests", "1", "--shared-tokens", "4", "--unique-tokens", "2", "--output-tokens", "2"]):
            for machine, words in (("h200", "machine model h200 is a GPU's"), ("h20", "no shipped machine model 'h20'; known: ")):
                with self.subTest(command, machine=machine):
                    done = coppice(*command, *engine, "--machine", machine)
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)
                    self.assertIn(words, done.stderr)

    def test_prompt(self):
        self.expect_error(["--model", TINY, "--prompt", ""], "prompt is empty")
        self.expect_error(["--model", TINY], "prompt is empty", "stdin", stdin="")
        self.expect_error(["--model", TINY, "--prompt-ids", ""], "--prompt-ids is empty")
        self.expect_error(["--model", TINY, "--prompt-ids", "1,two"], "'two'")
        self.expect_error(["--model", TINY, "--prompt-file", "-"], "no tokenizer", stdin="text")
        for option in ("--save-prefix", "--trace"):
            self.expect_error([*GOOD, option, "-"], "standard output", "./-")
        self.expect_error(["--model", TINY, "--prompt-file", os.path.join(self.folder, "absent")], "absent", "No such file")
        self.expect_error(["--model", TINY, "--prompt-file", self.write("empty", b"")], "prompt is empty", "empty")
        self.expect_error(["--model", TINY, "--prompt", "text"], "no tokenizer", "--prompt-ids")
        self.expect_error(["--model", TINY, "--prompt-ids", "320"], "320")  # the vocabulary is [0, 320)

    def test_prompt_over_the_context(self):
        self.expect_error([*GOOD, "--max-context", "2"], "has 3 tokens", "length is 2 ", "raise max_context (--max-context)", "2048")
        self.expect_error(["--model", TINY, "--prompt-ids", ",".join(["7"] * 2049)], "2049", "limit of this model is 2048")

    def test_prefix_files(self):
        self.expect_error([*GOOD, "--load-prefix", "none.safetensors"], "none.safetensors")
        self.expect_error([*GOOD, "--load-prefix", "x", "--sharing", "none"], "--load-prefix", "--sharing none")
        prefix = os.path.join(self.folder, "prefix")
        for option in ("--trace", "--record"):
            self.expect_error([*GOOD, "--save-prefix", prefix, option, prefix], "same file", "--save-prefix", option)

    def test_missing_model(self):
        self.expect_error(["--model", os.path.join(self.folder, "absent.gguf"), "--prompt-ids", "1"], "absent.gguf", "--model", "`coppice models`")

    def test_folder_without_a_model(self):
        self.expect_error(["--model", self.folder, "--prompt-ids", "1"], "config.json")

    def test_corrupt_gguf(self):
        header = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
        tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 1 << 20, 0, 0)
        for name, data in {
            "empty.gguf": b"",
            "magic.gguf": b"GGUX" + header[4:],
            "version.gguf": struct.pack("<4sIQQ", b"GGUF", 99, 0, 0),
            "header-cut.gguf": header[:10],
            "counts.gguf": struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 1 << 60),
            "data-cut.gguf": header + tensor,
        }.items():
            with self.subTest(name):
                self.expect_error(["--model", self.write(name, data), "--prompt-ids", "1"], name)

    def test_truncated_safetensors(self):
        model = self.copy_of_tiny()
        weights = os.path.join(model, "model.safetensors")
        os.truncate(weights, os.path.getsize(weights) // 2)
        self.expect_error(["--model", model, "--prompt-ids", "1"], "model.safetensors")

    def test_pipes_in_a_model(self):
        """They have no writer: each is refused, none waited for."""
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            with self.subTest(name):
                model = self.copy_of_tiny()
                path = os.path.join(model, name)
                if os.path.exists(path):
                    os.remove(path)
                os.mkfifo(path)
                if name == "tokenizer.json":  # token ids need none
                    done = coppice("run", "--model", model, "--prompt-ids", "1", "--max-tokens", 1)
                    self.assertEqual(done.returncode, 0, done)
                    self.assertIn("not a regular file", done.stderr)
                else:
                    self.expect_error(["--model", model, "--prompt-ids", "1"], name, "not a regular file")
                shutil.rmtree(model)
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        self.expect_error(["--model", pipe, "--prompt-ids", "1"], "not a regular file")
        self.expect_error([*GOOD, "--load-prefix", pipe], "not a regular file")

    def test_corrupt_config(self):
        model = self.copy_of_tiny()
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
            file.write('{"architectures": ["LlamaForCausalLM"')
        self.expect_error(["--model", model, "--prompt-ids", "1"], "config.json")

    def test_tensor_of_the_wrong_shape(self):
        model = self.copy_of_tiny()
        path = os.path.join(model, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        rows = config["intermediate_size"]
        config["intermediate_size"] = rows + 8
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        self.expect_error(["--model", model, "--prompt-ids", "1"], "model.safetensors", "mlp", str(rows), str(rows + 8))


class OtherErrorsTest(unittest.TestCase):
    def test_commands(self):
        for args in ([], ["no-such-command"]):
            done = coppice(*args)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)

    def test_help_and_version(self):
        self.assertRegex(coppice("--version").stdout,
                         r"\Acoppice 0\.2\.0( \([0-9a-f]{10,}\))?\nCPU: kernels for \w+ \(products\), [\w-]+ \(attention\)\nMeasured to be faster: of products none \(.+\), of attention none \(.+\); see coppice inspect kernels\nCUDA: .+\nConstrained output: (yes|not in this build.*)\n\Z")
        help_text = coppice("run", "--help")
        self.assertEqual(help_text.returncode, 0)
        for option in ("--prompt-file", "--sharing", "--rank", "--baseline"):
            self.assertIn(option, help_text.stdout)


if __name__ == "__main__":
    unittest.main()
