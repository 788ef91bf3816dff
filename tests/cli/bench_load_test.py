"""`coppice bench throughput` and `bench serve` on a random-weight model: figures that must hold, the JSON file, the page."""

import html.parser
import csv
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree

from program import COPPICE, TINY, coppice


class Page(html.parser.HTMLParser):
    """Counts plots; notes whatever would make a browser fetch something."""

    def __init__(self):
        super().__init__()
        self.plots, self.references, self.open = 0, [], []

    def handle_starttag(self, tag, attrs):
        self.plots += tag == "svg"
        self.references += [value for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "line", "circle", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass


class BenchLoadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out, self.html = os.path.join(folder.name, "out.json"), os.path.join(folder.name, "out.html")
        self.lines = os.path.join(folder.name, "lines.jsonl")

    def bench(self, *args):
        done = coppice("bench", *args, "--model", TINY, "--out", self.out, "--html", self.html)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.out, encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(len(done.stdout.splitlines()), 1 + len(report["rows"]))
        return report

    def page(self):
        with open(self.html, encoding="utf-8") as file:
            text = file.read()
        page = Page()
        page.feed(text)
        self.assertEqual((page.references, page.open), ([], []))
        for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
            xml.etree.ElementTree.fromstring(svg)
            self.assertNotIn("nan", svg)
            self.assertNotIn("inf", svg.replace("sans-serif", ""))
        self.assertIn("prefers-color-scheme:dark", text)
        return page

    def test_throughput(self):
        """2 groups of 4: 200 shared tokens and 10 own."""
        report = self.bench("throughput", "--groups", 2, "--requests", 4, "--shared-tokens", 200, "--unique-tokens", 10, "--output-tokens", 8, "--repeats", 2, "--force-sharing")
        rows = {row["sharing"]: row["result"] for row in report["rows"]}
        self.assertEqual(list(rows), ["tree", "one-level", "store", "none"])
        self.assertEqual(report["dtype"], "bf16", "what the engine chose")
        for mode, row in rows.items():
            self.assertEqual(row["dtype"], "bf16")
            self.assertEqual((row["requests"], row["prompt_tokens"], row["output_tokens"]), (8, 8 * 210, 8 * 8))
            # Prompts that are computed in one step share whole pages of 16.
            self.assertGreaterEqual(row["hit_rate"], 0 if mode == "none" else 6 * 192 / (8 * 210))
            self.assertLessEqual(row["hit_rate"], 0 if mode == "none" else 6 * 200 / (8 * 210))
            self.assertEqual(row["prefilled_tokens"], 8 * 210 - row["cached_tokens"])
            for name in ("ttft", "tbt", "latency"):
                percentiles = row[name]["percentiles"]
                self.assertEqual(len(percentiles), 101)
                self.assertEqual(percentiles, sorted(percentiles))
                self.assertEqual([row[name][p] for p in ("p50", "p90", "p99")], [percentiles[p] for p in (50, 90, 99)])
            self.assertGreater(row["latency"]["p50"], row["ttft"]["p50"])
            self.assertLessEqual(row["stalled_500ms_share"], row["stalled_200ms_share"])
            self.assertGreater(row["output_tokens_per_second"], 0)
        self.assertLess(rows["tree"]["kv_bytes_read"], rows["store"]["kv_bytes_read"])
        self.assertLess(rows["store"]["kv_bytes_stored"], rows["none"]["kv_bytes_stored"])
        self.assertEqual(self.page().plots, 11)

    def test_kinds(self):
        """Prompts of 50 tokens in chunks of 16 beside what decodes: each order of kinds computes the same steps, and so do steps without attention."""
        report = self.bench("throughput", "--workload", "ratio", "--requests", 6, "--total-tokens", 60, "--ratios", 5, "--modes", "tree,no-attention", "--kinds", "auto,serial,two-launches",
                            "--chunk", 16, "--max-batch-tokens", 32, "--max-running", 4)
        self.assertEqual([(row["sharing"], row["kinds"]) for row in report["rows"]], [("tree", "auto"), ("tree", "serial"), ("tree", "two-launches"), ("no-attention", "auto")])
        first = report["rows"][0]["result"]
        kinds = first["steps_by_kind"]
        self.assertEqual(list(kinds), ["prefill", "hybrid", "decode"])
        self.assertEqual(sum(kind["steps"] for kind in kinds.values()), first["steps"])
        self.assertGreater(kinds["hybrid"]["steps"], 6, "a request's prompt has four chunks")
        for kind in kinds.values():
            self.assertGreater(kind["steps"], 0)
            self.assertGreater(kind["seconds"], 0)
        for row in report["rows"]:
            self.assertEqual({kind: row["result"]["steps_by_kind"][kind]["steps"] for kind in kinds}, {kind: kinds[kind]["steps"] for kind in kinds})
            self.assertEqual(row["result"]["output_tokens"], 60)
        # Nothing is shared: a chunk's rows and those that decode read what they see, a few blocks of rows the same.
        self.assertGreater(first["kv_bytes_distinct"], 0)
        self.assertLessEqual(first["kv_bytes_distinct"], first["kv_bytes_read"])
        self.page()
        done = coppice("bench", "serve", "--model", TINY, "--rate", 1, "--kinds", "auto,both")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'both' is no order of kinds; expected auto, overlapped, serial or two-launches", done.stderr)

    def test_chunks(self):
        """A list of chunks: a row each, of as many steps as the prompts have chunks."""
        args = ("throughput", "--workload", "ratio", "--requests", 1, "--total-tokens", 70, "--ratios", 6, "--modes", "tree", "--max-batch-tokens", 64)
        report = self.bench(*args, "--chunk", "10,30", "--append", self.lines)
        self.assertEqual([(row["chunk"], row["result"]["steps_by_kind"]["prefill"]["steps"]) for row in report["rows"]], [(10, 6), (30, 2)])
        with open(self.lines, encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["chunk"] for line in file], [10, 30])
        one = self.bench(*args, "--chunk", "10")
        self.assertEqual((one["chunk"], "chunk" in one["rows"][0]), (10, False))
        self.assertEqual(self.bench(*args, "--chunk", "30,auto", "--append", self.lines)["rows"][0]["chunk"], -1)

    def test_mmlu_and_single_level(self):
        report = self.bench("throughput", "--workload", "mmlu", "--groups", 2, "--requests", 3, "--shots", 1, "--output-tokens", 4, "--modes", "tree,none", "--max-context", 2048)
        tree, none = (row["result"] for row in report["rows"])
        self.assertEqual((tree["requests"], tree["samples"], tree["output_tokens"]), (6, 6, 24))
        self.assertGreater(tree["cached_tokens"], 0)
        self.assertEqual(none["cached_tokens"], 0)
        few_shot = ("throughput", "--workload", "few-shot", "--requests", 2, "-n", 8, "--shared-tokens", 64, "--unique-tokens", 48, "--output-tokens", 4, "--modes", "tree", "--max-running", 16)
        two = self.bench(*few_shot)["rows"][0]["result"]
        single = self.bench(*few_shot, "--single-level")["rows"][0]["result"]
        self.assertEqual((two["samples"], two["output_tokens"]), (single["samples"], single["output_tokens"]))
        self.assertEqual((two["requests"], single["requests"]), (2, 16))
        # Pages of 16 tokens: 4 of the examples, 3 of each problem, one of each sample.
        self.assertGreaterEqual(single["kv_bytes_stored"], 2 * two["kv_bytes_stored"])

    def test_serve(self):
        report = self.bench("serve", "--workload", "mixture", "--requests", 12, "--shared-tokens", 40, "--unique-tokens", 5, "--output-tokens", 4, "--rate", "50,200",
                            "--modes", "tree,none")
        self.assertEqual([(row["rate"], row["sharing"]) for row in report["rows"]], [(50, "tree"), (50, "none"), (200, "tree"), (200, "none")])
        for row in report["rows"]:
            # 11 gaps follow the first arrival; nothing can end before the last request came.
            self.assertLess(row["result"]["requests_per_second"], 4 * row["rate"])
            self.assertEqual(row["result"]["requests"], 12)
        self.assertEqual(self.page().plots, 8 + 2 * 3)

    def test_a_command_goes_on_where_its_lines_end(self):
        args = ("serve", "--workload", "mixture", "--requests", 6, "--shared-tokens", 20, "--unique-tokens", 5, "--output-tokens", 3, "--rate", "100,200", "--modes", "tree", "--append", self.lines)
        self.assertEqual(len(self.bench(*args)["rows"]), 2)
        with open(self.lines, encoding="utf-8") as file:
            lines = file.readlines()
        self.assertEqual([json.loads(line)["rate"] for line in lines], [100, 200])
        with open(self.lines, "w", encoding="utf-8") as file:
            file.write('{"commit": "of another line"}\n' + lines[1])
        self.assertEqual([row["rate"] for row in self.bench(*args)["rows"]], [100])
        self.assertEqual(self.bench(*args)["rows"], [])
        with open(self.lines, encoding="utf-8") as file:
            self.assertEqual([json.loads(line).get("rate") for line in file], [None, 200, 100])

    def test_sweep(self):
        report = self.bench("throughput", "--workload", "ratio", "--requests", 3, "--total-tokens", 50, "--ratios", "4,9", "--modes", "tree", "--dtype", "f32")
        self.assertEqual([report["dtype"], *(row["result"]["dtype"] for row in report["rows"])], ["f32"] * 3)
        with open(self.html, encoding="utf-8") as file:
            self.assertIn("threads), f32; medians of", file.read())
        self.assertEqual([(row["x"], row["result"]["output_tokens"]) for row in report["rows"]], [(4, 30), (9, 15)])
        self.assertEqual(self.page().plots, 8 + 2 * 3)

    def test_refusals(self):
        for args, part in ((["throughput", "--workload", "books"], "expected one of shared-prefix"),
                           (["throughput", "--workload", "sampling", "--groups", 3], "no --groups"),
                           (["throughput", "--workload", "document"], "context length is 2048"),
                           (["throughput", "--shared-tokens", 200, "--max-context", 100], "raise --max-context, which this model lets be 2048"),
                           (["throughput", "--modes", "tree,all"], "'all' is no mode"),
                           (["serve"], "--rate"),
                           (["serve", "--rate", "0"], "--rate")):
            done = coppice("bench", *args, "--model", TINY)
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertIn(part, done.stderr)


class BenchDecodeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out.json")

    def test_a_case_without_room_is_x(self):
        done = coppice("bench", "decode", "--model", TINY, "--prompt-tokens", 64, "-n", 16, "--max-tokens", 32, "--repeats", 1, "--kv-cache", "256kb",
                       "--modes", "tree,none", "--out", self.out)
        self.assertEqual(done.returncode, 0, done)
        with open(self.out, encoding="utf-8") as file:
            tree, none = json.load(file)["rows"]
        self.assertGreater(tree["decode_tokens_per_second"], 0)
        self.assertIn("16 samples hold", none["out_of_memory"])
        self.assertRegex(done.stdout, r"64 +16 +none +x +x +x +x\n")
        self.assertIn(none["out_of_memory"], done.stderr)

    def test_a_command_goes_on_where_its_lines_end(self):
        lines = os.path.join(os.path.dirname(self.out), "lines.jsonl")
        args = ("bench", "decode", "--model", TINY, "--prompt-tokens", 64, "-n", "1,2", "--max-tokens", 4, "--repeats", 1, "--append", lines)
        for modes, measured in (("tree", ["tree", "tree"]), ("tree,store", ["tree", "tree", "store", "store"]), ("tree,store", ["tree", "tree", "store", "store"])):
            done = coppice(*args, "--modes", modes)
            self.assertEqual(done.returncode, 0, done)
            with open(lines, encoding="utf-8") as file:
                self.assertEqual([json.loads(line)["sharing"] for line in file], measured)
        self.assertEqual(done.stdout, "", "nothing is measured twice")

    def test_csv_has_a_line_a_case_and_no_attention_is_a_mode(self):
        csv_path = os.path.join(os.path.dirname(self.out), "out.csv")
        html_path = os.path.join(os.path.dirname(self.out), "out.html")
        done = coppice("bench", "decode", "--model", TINY, "--prompt-tokens", "64,128", "-n", 2, "--max-tokens", 4, "--repeats", 1,
                       "--modes", "tree,no-attention", "--out", self.out, "--csv", csv_path, "--html", html_path, "--roofline", 0.02, 0.2)
        self.assertEqual(done.returncode, 0, done)
        with open(self.out, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        with open(csv_path, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        self.assertEqual([(row["prompt_tokens"], row["sharing"]) for row in rows],
                         [(64, "tree"), (64, "no-attention"), (128, "tree"), (128, "no-attention")])
        self.assertEqual([line["sharing"] for line in lines], [row["sharing"] for row in rows])
        for row, line in zip(rows, lines):
            self.assertGreater(row["decode_tokens_per_second"], 0)
            self.assertEqual(float(line["decode_tokens_per_second"]), row["decode_tokens_per_second"])
            self.assertAlmostEqual(row["step_ms"], 1e3 * row["decode_seconds"] / row["decode_steps"])
            self.assertGreater(row["first_token_seconds"], 0)
            self.assertIsNone(row["step_over_graph"], "a CPU has no graphs")
        for prompt in (64, 128):
            tree, without = (row for row in rows if row["prompt_tokens"] == prompt)
            self.assertAlmostEqual(tree["attention"]["step_ms"], tree["step_ms"] - without["step_ms"])
            self.assertGreater(tree["attention"]["bound_ms"], 0)
            self.assertRegex(done.stdout, rf"attention of a step, prompt {prompt}, n 2, tree: .* us a layer.*serial bound")
        with open(html_path, encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(page.count("<svg"), 3, "three figures over the prompt's length, n has one value")
        self.assertEqual(page.count("<tr>"), 5)
        done = coppice("bench", "decode", "--model", TINY, "--modes", "tree,all")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'all' is no mode; expected tree, one-level, store, none or no-attention", done.stderr)


    def rows(self, *args):
        """The rows of the report of `bench decode ARGS`, which must succeed, by prompt, samples and mode; and what it printed."""
        done = coppice("bench", "decode", "--model", TINY, "--max-tokens", 4, *args, "--out", self.out)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        with open(self.out, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        return {(row["prompt_tokens"], row["samples"], row["sharing"]): row for row in rows}, done.stdout

    def test_all_cases_of_a_mode_on_one_engine(self):
        """Each case counts what it counts on an engine of its own: nothing comes from the cache, and peaks are its own, though the largest is first."""
        args = ("--prompt-tokens", "100,40", "-n", "5,2", "--modes", "tree,none,no-attention", "--repeats", 2)
        alone, _ = self.rows(*args, "--engine-per", "run")
        together, printed = self.rows(*args, "--engine-per", "mode")
        self.assertEqual(list(together), list(alone))
        self.assertEqual(len(together), 12)
        for case, row in together.items():
            for key in ("runs", "steps", "decode_steps", "kv_bytes_read_per_step", "kv_bytes_stored"):
                self.assertEqual(row[key], alone[case][key], (case, key))
            self.assertEqual(row["runs"], 2)
            for key in ("first_token_seconds", "peak_rss_bytes"):
                self.assertGreater(alone[case][key], 0)
                if case[:2] == (100, 5):
                    self.assertGreater(row[key], 0, "the first case of an engine")
                else:
                    self.assertIsNone(row[key], case)
        lines = [line.split() for line in printed.splitlines()]
        self.assertEqual([line[2] for line in lines[1:13]], ["tree"] * 4 + ["none"] * 4 + ["no-attention"] * 4, "in the order of the measurement")
        self.assertEqual([line[-1] == "-" for line in lines[1:13]], [False, True, True, True] * 3)
        # --device auto is the CPU here or a GPU; a CPU takes an engine a run.
        with open(self.out, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["engine_per"], "mode")
        self.rows("--prompt-tokens", 8, "-n", 1, "--modes", "tree", "--repeats", 1, "--device", "cpu")
        with open(self.out, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["engine_per"], "run")
        # A device and a dtype that no option names are reported as they were chosen: f32 is the CPU's.
        for weights, dtype in (("f32", "bf16"), ("stored", "bf16")):
            self.rows("--prompt-tokens", 8, "-n", 1, "--modes", "tree", "--repeats", 1, "--weights", weights)
            with open(self.out, encoding="utf-8") as file:
                report = json.load(file)
            self.assertEqual((report["device"], report["dtype"], report["engine_per"]), ("cpu", dtype, "run"))
        done = coppice("bench", "decode", "--model", TINY, "--engine-per", "case")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'case' is none of auto, run and mode", done.stderr)

    def test_distinct_kv_counts_each_token_once(self):
        """Six pages of prompt and up to 4 tokens of each of 5 samples: what equation 6 of Bifurcated Attention counts, whatever reads it."""
        rows, _ = self.rows("--prompt-tokens", 96, "-n", 5, "--modes", "tree,store,none", "--kinds", "auto", "--repeats", 1)
        tree, store, none = (rows[96, 5, mode]["kv_bytes_distinct_per_step"] for mode in ("tree", "store", "none"))
        self.assertEqual(tree, store, "stored once")
        token = rows[96, 5, "none"]["kv_bytes_read_per_step"] / (5 * (96 + 2))  # three steps, with 1, 2 and 3 own tokens a sample
        self.assertAlmostEqual(none, 5 * 98 * token)
        self.assertAlmostEqual(tree, (96 + 5 * 2) * token)

    def test_the_largest_batch(self):
        """-n max: one sample more does not fit, copies of the prompt let fewer, and --max-running bounds it."""
        lines = os.path.join(os.path.dirname(self.out), "lines.jsonl")
        args = ("bench", "decode", "--model", TINY, "--prompt-tokens", 64, "--max-tokens", 32, "--repeats", 1, "--kv-cache", "256kb", "--out", self.out)
        for engine in ("run", "mode"):
            done = coppice(*args, "-n", "max", "--modes", "tree,none", "--engine-per", engine)
            self.assertEqual(done.returncode, 0, done)
            with open(self.out, encoding="utf-8") as file:
                rows = {row["sharing"]: row for row in json.load(file)["rows"]}
            self.assertTrue(all(row["largest"] and row["decode_tokens_per_second"] > 0 for row in rows.values()))
            most = {mode: row["samples"] for mode, row in rows.items()}
            self.assertGreater(most["tree"], 2 * most["none"])
            for mode, samples in most.items():
                done = coppice(*args, "-n", f"{samples},{samples + 1}", "--modes", mode)
                with open(self.out, encoding="utf-8") as file:
                    self.assertEqual(["out_of_memory" in row for row in json.load(file)["rows"]], [False, True], mode)
        for _ in range(2):  # the second command has nothing to measure
            done = coppice(*args, "-n", "2,max", "--modes", "tree", "--max-running", 3, "--append", lines)
            self.assertEqual(done.returncode, 0, done)
        with open(lines, encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["samples"] for line in file], [2, 3])
        done = coppice(*args, "-n", "max", "--modes", "tree", "--prompt-tokens", 1024)
        self.assertRegex(done.stdout, r"1024 +1 +tree +x")
        self.assertIn("--samples", coppice("bench", "decode", "--model", TINY, "-n", "many").stderr)

    def test_a_case_without_room_leaves_the_engine_to_the_others(self):
        done = coppice("bench", "decode", "--model", TINY, "--prompt-tokens", "64,16", "-n", "16,2", "--max-tokens", 32, "--repeats", 2, "--kv-cache", "256kb",
                       "--modes", "none", "--engine-per", "mode", "--out", self.out)
        self.assertEqual(done.returncode, 0, done)
        with open(self.out, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        self.assertEqual([(row["prompt_tokens"], row["samples"], "out_of_memory" in row) for row in rows],
                         [(64, 16, True), (64, 2, False), (16, 16, True), (16, 2, False)])
        self.assertRegex(done.stdout, r"64 +16 +none +x +x +x +x\n")

    def test_an_interrupted_measurement_keeps_what_it_has(self):
        """Rows are printed and in the reports as they are measured; Ctrl-C ends the command, and a case under way counts its runs so far."""
        csv_path = os.path.join(os.path.dirname(self.out), "out.csv")
        prompts = ",".join(str(tokens) for tokens in range(8, 208))
        for per in ("run", "mode"):
            command = [COPPICE, "bench", "decode", "--model", TINY, "--prompt-tokens", prompts, "-n", "2", "--max-tokens", "4", "--modes", "tree", "--repeats", "1",
                       "--engine-per", per, "--out", self.out, "--csv", csv_path]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                head, first = process.stdout.readline(), process.stdout.readline()
                self.assertIn("decode t/s", head)
                self.assertRegex(first, r"^ +8 +2 +tree ")
                process.send_signal(signal.SIGINT)
                rest, errors = process.stdout.read(), process.stderr.read()
            self.assertEqual((process.returncode, errors), (130, ""))
            with open(self.out, encoding="utf-8") as file:
                rows = json.load(file)["rows"]
            with open(csv_path, encoding="utf-8", newline="") as file:
                lines = list(csv.DictReader(file))
            measured = 1 + len(rest.splitlines())
            self.assertLess(measured, 200)
            self.assertEqual([row["prompt_tokens"] for row in rows], list(range(8, 8 + measured)))
            self.assertEqual(len(lines), measured)
            os.remove(self.out)

        command = [COPPICE, "bench", "decode", "--model", TINY, "--prompt-tokens", "8", "-n", "2", "--max-tokens", "4", "--modes", "tree", "--repeats", "1000", "--out", self.out]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            while not os.path.exists(self.out) and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(len(printed.splitlines()), 2, "the head and the one case")
        with open(self.out, encoding="utf-8") as file:
            (row,) = json.load(file)["rows"]
        self.assertGreaterEqual(row["runs"], 1)
        self.assertLess(row["runs"], 1000)


class RandomWeightsTest(unittest.TestCase):
    ARGS = ("bench", "throughput", "--requests", 2, "--groups", 1, "--shared-tokens", 4, "--unique-tokens", 2, "--output-tokens", 2, "--modes", "tree")

    def test_a_shape_without_its_weights(self):
        done = coppice(*self.ARGS, "--weights", "random", "--config", os.path.join(TINY, "config.json"))
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("shared-prefix", done.stdout)

    def test_both_options_or_neither(self):
        for options in (["--weights", "random"], ["--config", os.path.join(TINY, "config.json")]):
            done = coppice(*self.ARGS, *options)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn("--weights random and --config FILE go together", done.stderr)


if __name__ == "__main__":
    unittest.main()
