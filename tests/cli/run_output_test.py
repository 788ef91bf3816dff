"""Output of `coppice run` for a random-weight model: the JSON schema, samples as text, ranking, the KV bytes of the closing table."""

import json
import os
import tempfile
import unittest

from program import TINY, coppice, run_json

with open(os.path.join(TINY, "config.json"), encoding="utf-8") as file:
    CONFIG = json.load(file)


def ids(count):
    return ",".join(str(3 + i * 7 % 300) for i in range(count))


class JsonTest(unittest.TestCase):
    def test_schema(self):
        output = run_json("--model", TINY, "--prompt-ids", "5,6,7", "-n", 3, "--max-tokens", 4, "--seed", 1, "--ignore-eos", "--prompt-logprobs")
        self.assertEqual(sorted(output), ["prompt_ids", "prompt_logprobs", "samples", "stats", "usage"])
        self.assertEqual(output["prompt_ids"], [5, 6, 7])
        self.assertEqual(len(output["prompt_logprobs"]), 3)
        self.assertIsNone(output["prompt_logprobs"][0])
        self.assertTrue(all(value < 0 for value in output["prompt_logprobs"][1:]))
        self.assertEqual([sample["index"] for sample in output["samples"]], [0, 1, 2])
        for sample in output["samples"]:
            self.assertEqual(sorted(sample), ["finish_reason", "index", "logprobs", "mean_logprob", "text", "token_ids"])
            self.assertEqual(sample["finish_reason"], "length")
            self.assertEqual((len(sample["token_ids"]), len(sample["logprobs"])), (4, 4))
            self.assertTrue(all(0 <= token < CONFIG["vocab_size"] for token in sample["token_ids"]))
            self.assertAlmostEqual(sample["mean_logprob"], sum(sample["logprobs"]) / 4, places=5)
        stats = output["stats"]
        self.assertEqual((stats["prompt_tokens"], stats["generated_tokens"], stats["samples_finished"]), (3, 12, 3))
        self.assertGreater(stats["decode_tokens_per_second"], 0)
        self.assertGreater(stats["prefill_tokens_per_second"], 0)

    def test_what_sharing_spared(self):
        arguments = ("--model", TINY, "--prompt-ids", ids(64), "-n", 4, "--max-tokens", 8, "--ignore-eos")
        shared = run_json(*arguments, "--force-sharing")["usage"]["shared_prefix"]
        self.assertEqual(sorted(shared), ["kv_bytes_not_read", "sharers", "tokens"])
        self.assertGreater(min(shared.values()), 0)
        unshared = run_json(*arguments, "--baseline", "store")["usage"]["shared_prefix"]
        self.assertEqual(unshared["kv_bytes_not_read"], 0)

    def test_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            done = run_json("--model", TINY, "--prompt-ids", ids(40), "-n", 3, "--max-tokens", 4, "--ignore-eos", "--trace", path)
            with open(path, encoding="utf-8") as file:
                events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
            self.assertEqual(coppice("run", "--model", TINY, "--prompt-ids", "5", "--trace", folder).returncode, 2)
        spans = {name: [event for event in events if event["name"] == name] for name in ("step", "schedule", "plan", "forward", "sample", "commit", "emit")}
        self.assertEqual(len({event["tid"] for event in spans["step"]}), 1)
        steps = [event["args"] for event in spans["step"] if event.get("args")]
        self.assertEqual([step["step"] for step in steps], list(range(steps[0]["step"], steps[0]["step"] + 4)))  # the prompt, and three of decoding
        forward = spans["forward"][-4:]  # the warm-up has steps of its own
        self.assertEqual([event["args"]["rows"] for event in forward], [40, 3, 3, 3])
        self.assertEqual(sum(event["args"]["draws"] for event in spans["sample"][-4:]), done["stats"]["generated_tokens"])
        for name in ("schedule", "plan", "forward", "sample", "commit"):
            for event in spans[name][-4:]:
                self.assertTrue(any(step["ts"] <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"] for step in spans["step"]), event)
        self.assertTrue(spans["emit"])

    def test_no_prompt_logprobs_unless_asked(self):
        self.assertNotIn("prompt_logprobs", run_json("--model", TINY, "--prompt-ids", "5", "--max-tokens", 1))

    def test_rank(self):
        args = ["--model", TINY, "--prompt-ids", "5,6", "-n", 8, "--max-tokens", 6, "--seed", 3]
        ranked = run_json(*args, "--rank")["samples"]
        means = [sample["mean_logprob"] for sample in ranked]
        self.assertEqual(means, sorted(means, reverse=True))
        self.assertEqual(sorted(sample["index"] for sample in ranked), list(range(8)))

    def test_beams(self):
        args = ["--model", TINY, "--prompt-ids", "5,6", "--max-tokens", 6, "--ignore-eos", "--dtype", "f32", "--weights", "f32"]
        found = run_json(*args, "--beam-width", 8, "-n", 3, "--length-penalty", 2)["samples"]
        scores = [sample["beam_score"] for sample in found]
        self.assertEqual(scores, sorted(scores, reverse=True))
        for sample in found:
            self.assertAlmostEqual(sample["beam_score"], sum(sample["logprobs"]) / 6**2, 5)
        [greedy] = run_json(*args, "--temperature", 0)["samples"]
        [narrow] = run_json(*args, "--beam-width", 1)["samples"]
        self.assertEqual(narrow["token_ids"], greedy["token_ids"])
        self.assertNotIn("beam_score", greedy)

    def test_seed(self):
        args = ["--model", TINY, "--prompt-ids", "5,6", "-n", 4, "--max-tokens", 8, "--ignore-eos", "--seed"]
        first, again, other = ([s["token_ids"] for s in run_json(*args, seed)["samples"]] for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertGreater(len({tuple(sample) for sample in first}), 1)  # samples of one prompt differ

    def test_baseline_is_measured(self):
        stats = run_json("--model", TINY, "--prompt-ids", ids(40), "-n", 4, "--max-tokens", 4, "--baseline", "none")["stats"]
        self.assertEqual(stats["baseline"]["sharing"], "none")
        self.assertGreater(stats["baseline"]["decode_tokens_per_second"], 0)

    def test_another_engines_speed_stands_beside(self):
        job = ["--model", TINY, "--prompt-ids", ids(40), "-n", 4, "--max-tokens", 4, "--beside"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "peer.json")
            for text, words in (("{", "parse error"), ("[]", "expected an object"), ("{}", "name is missing"), ('{"name": "an engine with a long name"}', "16 bytes at most"),
                                ('{"name": "a", "decode_tokens_per_second": "fast"}', "expected tokens a second"), ('{"name": "a", "prefill_tokens_per_second": -1}', "expected tokens a second")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                done = coppice("run", *job, path)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done)
                self.assertIn(f"--beside {path}: ", done.stderr)
                self.assertIn(words, done.stderr)
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"name": "llama.cpp", "version": "1", "prefill_tokens_per_second": 3, "decode_tokens_per_second": 0.5}')
            self.assertEqual(run_json(*job, path)["stats"]["beside"], {"name": "llama.cpp", "prefill_tokens_per_second": 3.0, "decode_tokens_per_second": 0.5})
            table = coppice("run", *job, path).stderr
            self.assertRegex(table, r"with sharing +without +llama\.cpp +factor")
            self.assertRegex(table, r"decode tokens/s +[\d.]+ +- +0\.5 +\S+x")
        self.assertIn("check --beside", coppice("run", *job, path).stderr)


class PrefixFileTest(unittest.TestCase):
    def test_saved_prefix_is_not_computed_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "prompt.safetensors")
            common = ["--model", TINY, "-n", 2, "--max-tokens", 6, "--seed", 4, "--ignore-eos", "--deterministic"]
            saved = run_json(*common, "--prompt-ids", ids(50), "--save-prefix", path)
            self.assertEqual(saved["stats"]["prefilled_tokens"], 50)
            same = run_json(*common, "--prompt-ids", ids(50), "--load-prefix", path)
            self.assertEqual(same["stats"]["prefilled_tokens"], 1)  # the last token's logits are needed
            self.assertEqual([s["token_ids"] for s in same["samples"]], [s["token_ids"] for s in saved["samples"]])
            salted = run_json(*common, "--prompt-ids", ids(50), "--load-prefix", path, "--cache-salt", "s")
            self.assertEqual(salted["stats"]["prefilled_tokens"], 50)  # what is saved is public
            partly = run_json(*common, "--prompt-ids", ids(50), "--load-prefix", path, "--cache-salt", "s", "--cache-private-begin", 40)
            self.assertEqual(partly["stats"]["prefilled_tokens"], 10)
            longer = run_json(*common, "--prompt-ids", ids(60), "--load-prefix", path)
            self.assertEqual(longer["stats"]["prefilled_tokens"], 10)
            with open(path, "r+b") as file:
                file.seek(-3, os.SEEK_END)
                byte = file.read(1)
                file.seek(-3, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))
            done = coppice("run", "--model", TINY, "--prompt-ids", ids(50), "--load-prefix", path)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertIn("checksum", done.stderr)


class SharingTest(unittest.TestCase):
    """Hydragen and Bifurcated attention are exact: sharing changes bytes, not results."""

    def test_greedy_tokens_are_equal_in_all_modes(self):
        args = ["--model", TINY, "--dtype", "f32", "--prompt-ids", ids(33), "-n", 3, "--max-tokens", 12, "--temperature", 0, "--ignore-eos"]
        samples = {mode: run_json(*args, "--sharing", mode)["samples"] for mode in ("tree", "one-level", "store", "none")}
        for mode in ("one-level", "store", "none"):
            for a, b in zip(samples["tree"], samples[mode]):
                self.assertEqual(a["token_ids"], b["token_ids"], mode)
                self.assertLess(max(abs(x - y) for x, y in zip(a["logprobs"], b["logprobs"])), 1e-4, mode)

    def test_kv_bytes_are_those_of_the_formula(self):
        """2 x kv_heads x head_dim x bytes x layers x (P + own tokens), and n P without sharing (Bifurcated eq. 5-6)."""
        head_dim = CONFIG.get("head_dim") or CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
        per_token = 2 * CONFIG["num_key_value_heads"] * head_dim * CONFIG["num_hidden_layers"]
        tokens = 6
        for dtype, element in (("f32", 4), ("bf16", 2)):
            for page_size, prompt, n in ((16, 1, 5), (16, 15, 5), (16, 16, 5), (16, 17, 5), (64, 40, 3), (1, 9, 4), (16, 40, 1)):
                with self.subTest(dtype=dtype, page_size=page_size, prompt=prompt, n=n):
                    stats = run_json("--model", TINY, "--dtype", dtype, "--page-size", page_size, "--prompt-ids", ids(prompt), "-n", n,
                                     "--max-tokens", tokens, "--ignore-eos", "--seed", 1, "--force-sharing")["stats"]
                    steps = tokens - 1  # the first token of each sample comes from the prefill step
                    own = sum(n * t for t in range(1, tokens))  # this step's token included
                    self.assertEqual(stats["decode_steps"], steps)
                    self.assertEqual(stats["decode_kv_bytes_read"], per_token * element * (steps * prompt + own))
                    self.assertEqual(stats["decode_kv_bytes_read_unshared"], per_token * element * (steps * n * prompt + own))


class TextTest(unittest.TestCase):
    def test_samples_then_table(self):
        done = coppice("run", "--model", TINY, "--prompt-ids", "5,6", "-n", 2, "--max-tokens", 3, "--ignore-eos", "--seed", 1)
        self.assertEqual(done.returncode, 0)
        lines = done.stdout.splitlines()
        self.assertEqual(len([line for line in lines if line]), 4)  # texts and nothing else
        self.assertRegex(lines[0], r"^--- sample \d: 3 tokens, length, mean log-probability -\d+\.\d+$")
        self.assertRegex(lines[1], r"^\d+,\d+,\d+$")  # no tokenizer: ids
        self.assertRegex(done.stderr, r"with sharing +without +factor\n")
        for row in ("prefill tokens/s", "decode tokens/s", "KV stored at the peak", "KV read per decode step"):
            self.assertIn(row, done.stderr)
        self.assertLessEqual(max(map(len, done.stderr.splitlines())), 80)

    def test_quiet_prints_samples_alone(self):
        arguments = ("run", "--model", TINY, "--prompt-ids", "5,6", "-n", 2, "--max-tokens", 3, "--ignore-eos", "--seed", 1)
        loud, quiet = coppice(*arguments), coppice(*arguments, "--quiet")
        self.assertEqual((quiet.returncode, quiet.stdout, quiet.stderr), (0, loud.stdout, ""))

    def test_rank_prints_best_first(self):
        done = coppice("run", "--model", TINY, "--prompt-ids", "5,6", "-n", 3, "--max-tokens", 3, "--rank")
        headings = [line for line in done.stdout.splitlines() if line.startswith("--- ")]
        self.assertEqual([heading.split(",")[0] for heading in headings], ["--- rank 1", "--- rank 2", "--- rank 3"])


if __name__ == "__main__":
    unittest.main()
