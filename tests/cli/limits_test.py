"""Requests and options of absurd size: an error that names the field, never a crash, and nothing lost beside it."""

import json
import os
import resource
import subprocess
import tempfile
import unittest

from program import COPPICE, TINY, coppice, default_model_or_skip, run_json

PROMPT = ["--model", TINY, "--prompt-ids", "5,6,7"]
GOOD = ["run", *PROMPT, "--max-tokens", "2"]


def limited(command, env=None, **limits):
    """`coppice command` under limits such as AS=bytes, with more in its environment."""
    def lower():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
    return subprocess.run([COPPICE, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
                          env=os.environ | (env or {}), preexec_fn=lower)


class RunLimitsTest(unittest.TestCase):
    def refused(self, args, *words, status=2):
        done = limited([*GOOD, *args])
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1), (args, done))
        for word in words:
            self.assertIn(word, done.stderr)

    def test_numbers_of_samples(self):
        for option in ("-n", "--best-of"):
            for value in (100_000_000, 2_000_000_000, 2**31 - 1):
                self.refused([option, value], str(value))
            for value in (0, -1, -2**31):
                self.refused([option, value], str(value))
            for value in (2**31, 2**63, 2**64, 1.5, "1e3", "many"):
                self.refused([option, value], "Could not convert: --", str(value))
        self.assertEqual(len(run_json(*GOOD[1:], "-n", 300)["samples"]), 300)  # more than run at a time

    def test_threads(self):
        self.refused(["--threads", 100000], "--threads is 100000", "0..4096")
        self.refused(["--threads", -1], "--threads is -1")
        done = limited([*GOOD, "--threads", 1000], AS=6 << 30)  # a stack has 8 MiB
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done)
        self.assertIn("thread", done.stderr)
        done = limited(["inspect", "plan", "--threads", 1000], AS=6 << 30)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done)

    def test_dtypes_that_a_device_does_not_compute_in(self):
        for options, words in ((["--device", "cuda", "--dtype", "f32"], "--dtype is f32 and device cuda: expected device cpu, or dtype bf16 or f16"),
                               (["--device", "cuda:1", "--weights", "f32"], "--weights is f32 and device cuda:1: expected device cpu, or weights fastest or bf16"),
                               (["--device", "cpu", "--dtype", "f16"], "--dtype is f16 and device cpu: expected dtype bf16 or f32, or a CUDA device")):
            self.refused(options, words)
        for options in (["--dtype", "f32"], ["--weights", "f32"]):  # auto is the CPU
            self.assertEqual(run_json(*GOOD[1:], *options)["stats"]["samples"], 1)

    def test_lists_of_devices_are_ranks(self):
        for devices, why in (("cuda,cuda", "which names cuda:0 twice"), ("cpu,cuda:1", "whose ranks are not of one kind"), ("auto,cpu", "whose ranks are not of one kind")):
            self.refused(["--device", devices], f'--device is "{devices}", {why}: expected one device, several GPUs (cuda:0,cuda:1) or cpu several times (cpu,cpu)')
        self.refused(["--device", "cpu", "--tp", "2"], "--tp")
        self.refused(["--device", "cpu,"], "--device")
        one, two = (run_json(*GOOD[1:], "--dtype", "f32", "--temperature", 0, "--device", devices) for devices in ("cpu", "cpu,cpu"))
        self.assertEqual([sample["text"] for sample in two["samples"]], [sample["text"] for sample in one["samples"]])

    def test_other_sizes(self):
        for option in ("--page-size", "--max-running", "--max-batch-tokens", "--max-context", "--draft-tokens", "--draft-branches"):
            for value in (-1, 2**31 - 1, 2**31, 10**30):
                self.refused([option, value], "max_context is" if (option, value) == ("--max-context", 2**31 - 1) else option)
        for value, words in ((2**31, "--max-tokens"), (-5, "--max-tokens is -5")):
            done = coppice("run", *PROMPT, "--max-tokens", value)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)
            self.assertIn(words, done.stderr)
        self.refused(["--kv-cache", "-1"], "--kv-cache")
        self.refused(["--kv-cache", "1000000000000GiB"], "--kv-cache")
        self.assertEqual(len(run_json(*PROMPT, "--ignore-eos", "--max-tokens", 2**31 - 1, "--max-context", 40)["samples"][0]["token_ids"]), 37)  # to the end of the context

    def test_numbers_of_sampling(self):
        greedy = run_json(*PROMPT, "--max-tokens", 8, "--temperature", 0)["samples"][0]["token_ids"]
        for temperature in ("1e-7", "1e-38", "2.9e-39", "1e-39", "1e-45", "1e-300"):
            self.assertEqual(run_json(*PROMPT, "--max-tokens", 8, "--temperature", temperature, "--seed", 5)["samples"][0]["token_ids"], greedy, temperature)
        for temperature in ("-1e-45", "nan", "inf", "1e400"):
            self.refused(["--temperature", temperature], "--temperature")
        for seed in (-1, 2**64, "1.5", "", "0x5", " 5"):
            self.refused(["--seed", seed], "--seed")
        run_json(*GOOD[1:], "--seed", 2**64 - 1)
        for option, values in {"--top-p": (0, -1, 2, "nan"), "--min-p": (-1, 2, "nan"), "--top-k": (-1, 2**31)}.items():
            for value in values:
                self.refused([option, value], option)

    def test_lists(self):
        self.refused(["--stop", ""], "stop")
        for ids in ("1,", ",1", "1,,2", ",", "4294967296", "2147483648", "-1", "1.5", "0x1", "1 2"):
            done = coppice("run", "--model", TINY, "--prompt-ids=" + ids)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), (ids, done))
        self.assertEqual(run_json("--model", TINY, "--prompt-ids", " 1 , 2", "--max-tokens", 1)["prompt_ids"], [1, 2])

    def test_empty_paths(self):
        done = coppice("run", "--model", "", "--prompt-ids", "1")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done)
        self.assertIn("--model", done.stderr)
        for option in ("--save-prefix", "--load-prefix", "--draft-model"):
            self.refused([option, ""], option)

    def test_endless_prompts(self):
        self.assertIn("more than", coppice("run", "--model", TINY, "--prompt-file", "/dev/zero").stderr)

    def test_messages_are_one_line_of_utf8(self):
        done = subprocess.run([COPPICE, "run", "--model", b"no\n\xff\x1b[2Jmodel", "--prompt-ids", "1"], capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.decode("utf-8").count("\n"), 1)
        self.assertNotIn(b"\x1b", done.stderr)

    def test_a_kv_cache_that_does_not_fit_is_reported_in_units_of_people(self):
        done = limited([*GOOD, "--kv-cache", "24GiB"], AS=6 << 30)  # three layers
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done)
        self.assertIn("a KV cache of 24.0 GiB, layer by layer: cannot allocate 8.0 GiB: ", done.stderr)
        self.assertIn("lower kv_cache_bytes (--kv-cache)", done.stderr)

    def test_little_address_space(self):
        """At each limit the command works, or ends with one line and exit status 1 or 2."""
        worked = 0
        for mebibytes in [*range(60, 240), *range(240, 800, 40)]:
            done = limited([*GOOD, "-n", 20, "--threads", 2], AS=mebibytes << 20)
            if done.returncode == 127:
                continue  # the program's libraries do not fit
            self.assertIn(done.returncode, (0, 1, 2), (mebibytes, done))
            if done.returncode != 0:
                self.assertRegex(done.stdout, r"\A(--- sample \d+: [^\n]*\n[^\n]*\n)*\Z")  # those that were finished, whole
                # GnuTLS may have spoken before; libgomp ends the program itself where its own start has no memory.
                self.assertRegex(done.stderr, r"\A([^\n]*\n){0,2}(coppice|libgomp): [^\n]*\n\Z")
            worked += done.returncode == 0
        self.assertGreater(worked, 0)  # the cache is sized by the limit too

    def test_the_least_address_space(self):
        """Where the libraries just fit, there is no memory for a message, nor for an exception."""
        little, enough = 16 << 10, 1 << 20  # KiB
        while enough - little > 32:
            middle = (little + enough) // 2
            if limited(["--version"], AS=middle << 10).returncode == 127:
                little = middle
            else:
                enough = middle
        for kibibytes in range(enough - 512, enough + 1024, 32):
            # The system's loader on its own: it crashes where all libraries but not their thread-local data fit (init_tls of glibc 2.36).
            if limited([], env={"LD_TRACE_LOADED_OBJECTS": "1"}, AS=kibibytes << 10).returncode < 0:
                continue
            done = limited(GOOD, AS=kibibytes << 10)
            self.assertIn(done.returncode, (1, 2, 127), (kibibytes, done))
            self.assertEqual(done.stdout, "")
            self.assertNotEqual(done.stderr, "")  # a library's words, it may be


class MemoryOfWeightsTest(unittest.TestCase):
    def test_stored_weights_are_held_once(self):
        """At most file + KV + 10 % + 300 MB, on any CPU."""
        try:
            model = default_model_or_skip()
        except SystemExit:
            self.skipTest("the default model could not be fetched")
        stats = run_json("--model", model, "--device", "cpu", "--weights", "stored", "--prompt", "The sky", "-n", 16, "--max-tokens", 16, "--ignore-eos",
                         "--threads", 2)["stats"]
        self.assertEqual(stats["weights"], "stored")
        self.assertLess(stats["peak_rss_bytes"], 1.1 * (os.path.getsize(model) + stats["kv_bytes_stored"]) + 300e6)

    def test_stored_weights_need_a_cpu(self):
        for options in (["--device", "cuda"], ["--device", "cuda:1"], ["--dtype", "f16"]):
            done = coppice("run", *PROMPT, "--weights", "stored", *options)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)
            self.assertIn("--weights is stored and", done.stderr)
            self.assertIn("weights fastest", done.stderr)
        for options in ([], ["--device", "cpu"], ["--dtype", "f32"]):
            self.assertEqual(run_json(*PROMPT, "--max-tokens", 2, "--weights", "stored", *options)["stats"]["weights"], "stored")


class BatchLimitsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input, self.output = os.path.join(folder.name, "in.jsonl"), os.path.join(folder.name, "out.jsonl")

    def test_absurd_fields_fail_alone(self):
        fields = [f'"{name}": {value}'
                  for name in ("n", "best_of", "max_tokens", "min_tokens", "top_k")
                  for value in ("1000000000", "2147483647", "2147483648", "9223372036854775808", "18446744073709551616", "1e400", "1e9", "-1", "-2147483649", "1.5", '"2"',
                                "[]", "true")]
        allowed = {f'"{name}": {value}' for name in ("max_tokens", "top_k") for value in ("1000000000", "2147483647", "1e9", "-1")}
        fields = [field for field in fields if field not in allowed]
        fields += ['"n": 0', '"n": 33, "best_of": 32', '"temperature": 1e400', '"temperature": 1e300', '"temperature": -1', '"top_p": 0', '"top_p": 1e300',
                   '"presence_penalty": 1e300', '"frequency_penalty": -1e38', '"repetition_penalty": 0', '"repetition_penalty": 1e-40',
                   '"logit_bias": {"5": 1e300}', '"logit_bias": {"4294967301": 1}', '"logit_bias": {"-1": 1}', '"logit_bias": {"5x": 1}', '"logit_bias": {"5": "1"}',
                   '"logit_bias": ' + json.dumps({str(i): 1 for i in range(100_000)}), '"stop": ' + json.dumps(["x"] * 100_000), '"stop": ' + json.dumps("x" * 1_000_000),
                   '"stop_token_ids": ' + json.dumps([5] * 100_000), '"stop_token_ids": [4294967301]', '"stop_token_ids": [-1]', '"stop_token_ids": [18446744073709551615]',
                   '"seed": 18446744073709551616', '"seed": 1.5', '"cache_salt": ' + json.dumps("x" * 1_000_000), '"prompt": [4294967301]', '"prompt": []',
                   '"prompt": ' + json.dumps([5] * 100_000), '"prompt": ' + json.dumps([[5]] * 1000)]
        with open(self.input, "w", encoding="utf-8") as file:
            for i, field in enumerate(fields):
                body = "{" + ('"prompt": [5, 6], ' if '"prompt"' not in field else "") + ('"max_tokens": 2, ' if "max_tokens" not in field else "") + field + "}"
                file.write(f'{{"custom_id": "bad{i}", "method": "POST", "url": "/v1/completions", "body": {body}}}\n')
                file.write(f'{{"custom_id": "good{i}", "method": "POST", "url": "/v1/completions", "body": {{"prompt": [5, {i % 300}], "max_tokens": 2}}}}\n')
        done = limited(["batch", self.input, self.output, "--model", TINY], AS=8 << 30)
        self.assertEqual(done.returncode, 1, done)
        with open(self.output, encoding="utf-8") as file:
            answered = {json.loads(line)["custom_id"] for line in file}
        self.assertEqual(answered, {f"good{i}" for i in range(len(fields))})
        with open(self.output + ".errors", encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), len(fields))

    def test_what_the_cache_allows(self):
        with open(self.input, "w", encoding="utf-8") as file:
            for n in (300, 100_000):
                file.write(json.dumps({"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": {"prompt": [5], "max_tokens": 2, "n": n}}) + "\n")
        done = limited(["batch", self.input, self.output, "--model", TINY, "--kv-cache", "4MiB"], AS=8 << 30)
        self.assertEqual(done.returncode, 1, done)
        with open(self.output, encoding="utf-8") as file:
            answer, = map(json.loads, file)
        self.assertEqual(len(answer["response"]["body"]["choices"]), 300)
        self.assertIn("n is 100000", done.stderr)


if __name__ == "__main__":
    unittest.main()
