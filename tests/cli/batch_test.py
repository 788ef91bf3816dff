"""`coppice batch`: the OpenAI batch format in and out, bad lines, order by prefix, and a run that is killed and goes on."""

import json
import math
import os
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import time
import unittest

from program import COPPICE, TINY, coppice


def line(custom_id, prompt, url="/v1/completions", method="POST", **body):
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": {"model": "any", "prompt": prompt, "temperature": 0} | body})


class BatchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input, self.output = os.path.join(folder.name, "in.jsonl"), os.path.join(folder.name, "out.jsonl")
        self.errors = self.output + ".errors"

    def write(self, *lines):
        with open(self.input, "w", encoding="utf-8") as file:
            file.write("".join(text + "\n" for text in lines))

    def command(self, *args, dtype="f32"):
        return ["batch", self.input, self.output, "--model", TINY, "--dtype", dtype, *args]

    def records(self, path):
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(text) for text in file]

    def answers(self):
        return {record["custom_id"]: record["response"]["body"] for record in self.records(self.output)}

    def test_response_format(self):
        self.write(line("one", [5, 6, 7], max_tokens=4, n=2, seed=3, temperature=1, logprobs=0, ignore_eos=True))
        done = coppice(*self.command())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertFalse(os.path.exists(self.errors))
        record, = self.records(self.output)
        self.assertEqual(list(record), ["id", "custom_id", "response", "error"])
        self.assertIsNone(record["error"])
        self.assertEqual((record["custom_id"], record["response"]["status_code"]), ("one", 200))
        self.assertTrue(record["response"]["request_id"])
        body = record["response"]["body"]
        self.assertEqual(body["object"], "text_completion")
        self.assertEqual(body["usage"], {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 0},
                                         "shared_prefix": body["usage"]["shared_prefix"]})
        self.assertEqual(set(body["usage"]["shared_prefix"]), {"tokens", "sharers", "kv_bytes_not_read"})
        self.assertEqual([choice["index"] for choice in body["choices"]], [0, 1])
        for choice in body["choices"]:
            self.assertEqual(choice["finish_reason"], "length")
            self.assertEqual((len(choice["token_ids"]), len(choice["logprobs"]["token_logprobs"])), (4, 4))
        self.assertNotEqual(*(choice["token_ids"] for choice in body["choices"]))

    def test_answers_are_those_of_run(self):
        prompts = {"a": [5, 6, 7], "b": [9, 8, 7, 6], "c": [5, 6, 7, 8]}
        self.write(*(line(name, prompt, max_tokens=6, ignore_eos=True) for name, prompt in prompts.items()))
        self.assertEqual(coppice(*self.command()).returncode, 0)
        for name, body in self.answers().items():
            alone = coppice("run", "--json", "--model", TINY, "--dtype", "f32", "--prompt-ids", ",".join(map(str, prompts[name])), "--max-tokens", 6,
                            "--temperature", 0, "--ignore-eos")
            self.assertEqual(body["choices"][0]["token_ids"], json.loads(alone.stdout)["samples"][0]["token_ids"], name)

    def test_a_tokenizer_that_cannot_be_read_is_named(self):
        model = os.path.join(os.path.dirname(self.input), "model")
        os.mkdir(model)
        for name in os.listdir(TINY):
            os.symlink(os.path.join(TINY, name), os.path.join(model, name))
        tokenizer = os.path.join(model, "tokenizer.json")
        if os.path.lexists(tokenizer):
            os.remove(tokenizer)
        with open(tokenizer, "w", encoding="utf-8") as file:
            json.dump({"model": {"type": "WordPiece"}}, file)
        self.write(line("ids", [5, 6, 7], max_tokens=2, ignore_eos=True), line("text", "hello", max_tokens=2))
        done = coppice("batch", self.input, self.output, "--model", model)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("answers have token_ids and no text: ", done.stderr)
        self.assertEqual(done.stderr.count("WordPiece"), 2)  # why, and for the line that needs it
        choice, = self.answers()["ids"]["choices"]
        self.assertEqual((len(choice["token_ids"]), choice["text"]), (2, ""))
        self.assertEqual([record["custom_id"] for record in self.records(self.errors)], ["text"])
        done = coppice("run", "--model", model, "--prompt-ids", "5,6,7", "--max-tokens", 2)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("without text: ", done.stderr)

    def test_rank_dedup_and_vote(self):
        args = {"max_tokens": 3, "ignore_eos": True, "logprobs": 0}
        self.write(line("same", [5, 6, 7], n=4, dedup=True, **args), line("rank", [5, 6, 7], n=6, rank=True, **args | {"temperature": 2, "seed": 4}),
                   line("vote", [5, 6, 7], n=2, vote="(", **args))
        self.assertEqual(coppice(*self.command()).returncode, 1)
        answers = self.answers()
        self.assertEqual(len(answers["same"]["choices"]), 1)  # greedy samples are equal
        means = [sum(choice["logprobs"]["token_logprobs"]) / 3 for choice in answers["rank"]["choices"]]
        self.assertEqual((len(means), means), (6, sorted(means, reverse=True)))
        error, = self.records(self.errors)
        self.assertEqual((error["custom_id"], error["response"]["body"]["error"]["param"]), ("vote", "vote"))

    def test_echo_and_best_of(self):
        prompt = [5, 6, 7]
        args = {"max_tokens": 3, "temperature": 1, "ignore_eos": True, "seed": 4, "logprobs": 0}
        self.write(line("all", prompt, n=6, **args), line("best", prompt, n=2, best_of=6, echo=True, **args))
        self.assertEqual(coppice(*self.command()).returncode, 0)
        everything, best = (self.answers()[name] for name in ("all", "best"))
        ranked = sorted(everything["choices"], key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
        self.assertEqual([choice["token_ids"] for choice in best["choices"]], [prompt + choice["token_ids"] for choice in ranked[:2]])
        self.assertEqual(best["usage"]["completion_tokens"], 18)
        logprobs = best["choices"][0]["logprobs"]["token_logprobs"]
        self.assertEqual(len(logprobs), 6)
        self.assertIsNone(logprobs[0])
        self.assertTrue(all(value < 0 for value in logprobs[1:]))

    def test_bad_lines_are_reported_by_number_and_the_run_goes_on(self):
        self.write(line("good", [5], max_tokens=1),                                             # 1
                   "not json",                                                                 # 2
                   "",                                                                         # 3: no line
                   line("good", [6]),                                                          # 4: custom_id of line 1
                   line("unknown", [6], suffix="x"),                                           # 5
                   line("type", [6], max_tokens="many"),                                       # 6
                   line("range", [6], top_p=7),                                                # 7
                   line("vocabulary", [99999]),                                                # 8
                   line("url", [6], url="/v1/embeddings"),                                     # 9
                   line("method", [6], method="GET"),                                          # 10
                   json.dumps({"method": "POST", "url": "/v1/completions", "body": {}}),       # 11
                   line("twins", [[5], [6]]),                                                  # 12
                   line("text", "words"),                                                      # 13
                   line("big", [6], max_tokens=2**40),                                         # 14
                   line("last", [7], max_tokens=1))                                            # 15
        done = coppice(*self.command())
        self.assertEqual(done.returncode, 1)
        self.assertEqual(sorted(self.answers()), ["good", "last"])
        errors = self.records(self.errors)
        self.assertEqual([error["line"] for error in errors], [2, 4, 5, 6, 9, 10, 11, 12, 13, 14, 7, 8])  # 7 and 8: by the engine, in its order
        self.assertIn("line 2: ", done.stderr)
        by_line = {error["line"]: error for error in errors}
        self.assertEqual((by_line[4]["custom_id"], by_line[4]["error"]["param"]), ("good", "custom_id"))
        self.assertIn("that of line 1", by_line[4]["error"]["message"])
        for number, param in ((5, "suffix"), (6, "max_tokens"), (12, "prompt"), (14, "max_tokens")):
            response = by_line[number]["response"]
            self.assertEqual(response["status_code"], 400)
            self.assertEqual(response["body"]["error"]["param"], param)
            self.assertIn(param, response["body"]["error"]["message"])
        self.assertIn("top_p is 7", by_line[7]["response"]["body"]["error"]["message"])
        self.assertEqual(by_line[9]["error"]["param"], "url")

    def test_a_corrected_line_is_answered_by_the_next_run(self):
        self.write(line("a", [5], max_tokens=1), line("b", [6], max_tokens=-2))
        self.assertEqual(coppice(*self.command()).returncode, 1)
        self.write(line("a", [5], max_tokens=1), line("b", [6], max_tokens=1))
        self.assertEqual(coppice(*self.command()).returncode, 0)
        self.assertEqual([record["custom_id"] for record in self.records(self.output)], ["a", "b"])
        self.assertFalse(os.path.exists(self.errors))

    def test_prefixes_run_together(self):
        """Far apart in the file, three prompts of 200 tokens find each other although only one request runs at a time."""
        heads = [[group + 3] * 200 for group in range(3)]
        self.write(*(line(f"{i}", heads[i % 3] + [10 + i], max_tokens=1) for i in range(30)))
        # Room for one prompt only: any prompt that comes between throws it out.
        self.assertEqual(coppice(*self.command("--max-running", 1, "--kv-cache", 2 * 3 * 2 * 16 * 4 * 256)).returncode, 0)
        answers = self.records(self.output)
        groups = [int(record["custom_id"]) % 3 for record in answers]
        self.assertEqual(groups, sorted(groups))
        cached = [record["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] for record in answers]
        self.assertEqual(cached.count(0), 3)
        self.assertEqual(sorted(cached)[3:], [200] * 27)

    def test_prefixes_under_names(self):
        prefixes = self.input + ".prefixes"
        with open(prefixes, "w", encoding="utf-8") as file:
            json.dump({"a": {"prompt": [5] * 40}, "secret": {"prompt": [6] * 40, "cache_salt": "s"}}, file)
        self.write(
            line("named", [7, 8], prefix="a", temperature=0),
            line("whole", [5] * 40 + [7, 8], temperature=0),
            line("salted", [7, 8], prefix="secret", temperature=0),
            line("other salt", [7, 8], prefix="secret", cache_salt="t"),
            line("no such", [7], prefix="b"),
        )
        self.assertEqual(coppice(*self.command("--prefixes", prefixes)).returncode, 1)
        answers = self.answers()
        self.assertEqual(answers["named"]["choices"], answers["whole"]["choices"])
        self.assertEqual(answers["salted"]["usage"]["prompt_tokens"], 42)
        errors = {record["custom_id"]: record["response"]["body"]["error"] for record in self.records(self.errors)}
        self.assertEqual({name: error["param"] for name, error in errors.items()}, {"other salt": "cache_salt", "no such": "prefix"})
        for text, expected in (("[]", "no object"), ('{"a": 1}', '"a"'), ('{"a b": {"prompt": [1]}}', "name"), ('{"a": {"prompt": "x"}}', "tokenizer"), ("{", prefixes)):
            with open(prefixes, "w", encoding="utf-8") as file:
                file.write(text)
            done = coppice(*self.command("--prefixes", prefixes))
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(expected, done.stderr)

    def requests_for_killing(self):
        return [line(f"r{i}", [3 + i % 5] * 20 + [100 + i % 200], max_tokens=60, ignore_eos=True) for i in range(200)]

    def whole_lines(self):
        if not os.path.exists(self.output):
            return 0
        with open(self.output, encoding="utf-8") as file:
            return sum(text.endswith("}\n") for text in file)

    def run_until(self, records, how, *args, dtype="f32"):
        with subprocess.Popen([COPPICE, *map(str, self.command("--max-running", 4, *args, dtype=dtype))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            while self.whole_lines() < records:
                self.assertIsNone(process.poll(), "it ended before it was killed")
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.002)
            process.send_signal(how)
            output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def test_killed_and_resumed(self):
        """Nothing is lost, nothing is there twice, and the answers are those of a run that was not killed."""
        self.write(*self.requests_for_killing())
        self.assertEqual(coppice(*self.command()).returncode, 0)
        undisturbed = {name: body["choices"] for name, body in self.answers().items()}
        self.assertEqual(len(undisturbed), 200)
        os.remove(self.output)
        for records in (3, 40, 90):
            self.assertEqual(self.run_until(records, signal.SIGKILL)[0], -signal.SIGKILL)
            with open(self.output, encoding="utf-8") as file:
                torn = file.readline()
            with open(self.output, "a", encoding="utf-8") as file:  # what a kill in the middle of a write leaves
                file.write(torn[:len(torn) // 2])
        before = self.whole_lines()
        self.assertLess(before, 200)
        done = coppice(*self.command())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{200 - before} answered", done.stdout)
        self.assertIn(f"{before} by an earlier run", done.stdout)
        names = [record["custom_id"] for record in self.records(self.output)]
        self.assertEqual((len(names), len(set(names))), (200, 200))
        self.assertEqual({name: body["choices"] for name, body in self.answers().items()}, undisturbed)

    def test_killed_and_resumed_deterministic(self):
        """In 16 bits and with sampled texts: other requests run together after a kill, prefixes come from the disk, and no bit differs."""
        heads = [[3 + (i + k) % 250 for i in range(160)] for k in range(3)]
        self.write(*(line(f"r{i}", heads[i % 3] + [3 + i % 17, 3 + i], max_tokens=24, ignore_eos=True, temperature=1, logprobs=0, n=2) for i in range(60)))
        self.assertEqual(coppice(*self.command("--deterministic", dtype="bf16")).returncode, 0)
        undisturbed = {name: body["choices"] for name, body in self.answers().items()}
        self.assertEqual(len({str(choice) for choices in undisturbed.values() for choice in choices}), 120)
        os.remove(self.output)
        for records in (2, 25):
            self.assertEqual(self.run_until(records, signal.SIGKILL, "--deterministic", dtype="bf16")[0], -signal.SIGKILL)
        self.assertLess(self.whole_lines(), 60)
        self.assertTrue(os.listdir(self.output + ".resume"))
        self.assertEqual(coppice(*self.command("--deterministic", dtype="bf16")).returncode, 0)
        self.assertEqual({name: body["choices"] for name, body in self.answers().items()}, undisturbed)

    def test_interrupted(self):
        self.write(*self.requests_for_killing())
        status, output = self.run_until(5, signal.SIGINT)
        self.assertEqual(status, 130)
        self.assertIn("the same command goes on", output)
        self.assertGreaterEqual(len(self.records(self.output)), 5)  # whole lines, all of them
        self.assertEqual(coppice(*self.command()).returncode, 0)
        self.assertEqual(len(self.answers()), 200)

    def test_interrupted_while_it_reads(self):
        self.write("no request", *(line(f"r{i}", [5] * 100) for i in range(50000)))
        with subprocess.Popen([COPPICE, *map(str, self.command())], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self.assertIn("line 1: ", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, output, errors), (130, "", ""))  # after all lines it would say how many are left

    def test_progress_under_frequent_kills(self):
        """Each run may use as much CPU time as a few requests take, in which a run that begins all requests at once answers none."""
        self.write(line("alone", [5], max_tokens=300, ignore_eos=True))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        self.assertEqual(coppice(*self.command("--threads", "1")).returncode, 0)
        seconds = math.ceil(4 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before))
        os.remove(self.output)
        head = [3 + i % 250 for i in range(608)]  # whole pages of 16
        self.write(*(line(f"r{i}", head + [3 + i % 150, 3 + i // 150], max_tokens=300, ignore_eos=True) for i in range(300)))
        answered = []
        for _ in range(4):
            done = subprocess.run([COPPICE, *self.command("--threads", "1")], capture_output=True, text=True, timeout=600, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)))
            if done.returncode == 0:
                break  # a machine whose other work made the request alone look slow
            self.assertLess(done.returncode, 0, done)  # killed
            answered.append(self.whole_lines())
        self.assertGreaterEqual(len(answered), 2)
        for before, after in zip(answered[:-1], answered[1:]):
            self.assertGreater(after, before, answered)
        if done.returncode != 0:
            self.assertEqual(len(os.listdir(self.output + ".resume")), 1)
            done = coppice(*self.command())
        self.assertEqual(done.returncode, 0, done.stderr)
        computed = int(re.search(r"([0-9]+) prompt tokens computed", done.stdout)[1])
        self.assertLessEqual(computed, 2 * (300 - answered[-1]))  # of each request its own tokens: the prefix came from the disk
        self.assertEqual(sorted(os.listdir(os.path.dirname(self.output))), ["in.jsonl", "out.jsonl"])
        names = [record["custom_id"] for record in self.records(self.output)]
        self.assertEqual((len(names), len(set(names))), (300, 300))

    def test_a_disk_with_little_room(self):
        """The prefix that is kept for another run must not take the room of answers."""
        head = [3 + i % 250 for i in range(608)]  # its KV has 390 kB, and the tokens of all prompts 480 kB while they are sorted
        self.write(*(line(f"r{i}", head + [3 + i % 150, 3 + i // 150], max_tokens=40, ignore_eos=True) for i in range(200)))
        disk = os.path.join(os.path.dirname(self.input), "disk")
        os.mkdir(disk)
        self.output = os.path.join(disk, "out.jsonl")
        command = " ".join(map(shlex.quote, [COPPICE, *self.command()]))
        script = f"mount -t tmpfs -o size=1000k none {disk} || exit 99; {command} && wc -l < {self.output}"
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True, text=True,
                              timeout=600, check=False)
        if done.returncode == 99 or "unshare" in done.stderr:
            self.skipTest("no file system of a given size can be made here")
        self.assertEqual(done.returncode, 0, done)
        self.assertNotIn("warning", done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], "200")

    def test_an_output_that_changes_is_noticed(self):
        def append():
            with open(self.output, "a", encoding="utf-8") as file:
                file.write("x\n")
        for change in (lambda: os.remove(self.output), lambda: os.rename(self.output, self.output + ".moved"), lambda: os.truncate(self.output, 10), append,
                       lambda: os.truncate(self.output, 0)):
            self.write(*self.requests_for_killing())
            with subprocess.Popen([COPPICE, *map(str, self.command("--max-running", 4))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                deadline = time.monotonic() + 60
                while self.whole_lines() < 3 and time.monotonic() < deadline:
                    time.sleep(0.002)
                change()
                output, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, output, errors.count("\n")), (2, "", 1), errors)
            self.assertIn("out.jsonl", errors)
            for name in (self.output, self.output + ".moved"):
                if os.path.exists(name):
                    os.remove(name)

    def test_an_input_that_is_a_pipe(self):
        os.mkfifo(self.input)  # without a writer
        self.refused("is no regular file")

    def test_standard_input_and_output_cannot_be_gone_on_with(self):
        self.write(line("a", [5], max_tokens=1))
        for name in ("input", "output"):
            path = getattr(self, name)
            setattr(self, name, "-")
            self.refused(f"the {name} is -", "goes on")
            setattr(self, name, path)
        self.assertEqual(coppice(*self.command("--errors", "-")).returncode, 2)
        done = coppice(*self.command("--prefixes", "-"), stdin='{"p": {"prompt": [1, 2]}}')
        self.assertEqual(done.returncode, 0, done.stderr)

    def refused(self, *parts, options=()):
        done = coppice(*self.command(*options))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_an_output_of_something_else_is_left_alone(self):
        self.write(line("a", [5], max_tokens=1))
        for text in ("my notes\n", "my notes", '{"custom_id": 3}\n'):
            with open(self.output, "w", encoding="utf-8") as file:
                file.write(text)
            self.refused("out.jsonl")
            with open(self.output, encoding="utf-8") as file:
                self.assertEqual(file.read(), text)

    def test_an_answer_to_another_request_is_no_answer(self):
        self.write(line("a", [5], max_tokens=1))
        self.assertEqual(coppice(*self.command()).returncode, 0)
        self.write(line("a", [6], max_tokens=1))
        self.refused('custom_id "a"', "another request", "give another output")

    def test_an_answer_of_another_model_is_no_answer(self):
        self.write(line("a", [5], max_tokens=1), line("b", [6], max_tokens=1))
        with open(self.output, "w", encoding="utf-8") as file:
            file.write('{"id":"batch_req_1","custom_id":"c","response":{"status_code":200,"body":{"model":"other"}},"error":null}\n')
        self.refused('answers of the model "other"', '"llama-gqa"', "give that model, or another output")

    def test_an_answer_after_another_prefix_is_no_answer(self):
        prefixes = self.input + ".prefixes"

        def go_on(prompt):
            with open(prefixes, "w", encoding="utf-8") as file:
                json.dump({"a": {"prompt": prompt}, "b": {"prompt": [9]}}, file)
            return coppice(*self.command("--prefixes", prefixes))
        self.write(line("first", [5], max_tokens=1, prefix="a"), line("none", [5], max_tokens=1))
        self.assertEqual(go_on([7, 8]).returncode, 0)
        self.write(line("first", [5], max_tokens=1, prefix="a"), line("none", [5], max_tokens=1), line("second", [6], max_tokens=1, prefix="b"))
        done = go_on([7, 9])
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn('custom_id "first", but to another request or prefix than line 1', done.stderr)
        self.refused('custom_id "first", but to another request than line 1', "refused now", "no prefix")  # without --prefixes
        self.assertEqual(sorted(self.answers()), ["first", "none"])
        done = go_on([7, 8])
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("1 answered", done.stdout)
        self.assertIn("2 by an earlier run", done.stdout)

    def test_files(self):
        self.refused("there is no input")
        self.write(line("a", [5], max_tokens=1))
        done = coppice("batch", self.input, self.input, "--model", TINY)
        self.assertEqual(done.returncode, 2)
        self.assertIn("same file", done.stderr)

    def test_two_outputs_of_one_name_that_does_not_exist_yet(self):
        self.write(line("a", [5], max_tokens=1))
        folder, name = os.path.split(self.output)
        for option in ("--errors", "--trace", "--record"):
            with self.subTest(option):
                self.refused("same file", option, options=[option, os.path.join(folder, ".", name)])


if __name__ == "__main__":
    unittest.main()
