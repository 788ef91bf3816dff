"""scripts/check_docs: a true tree passes, each kind of untruth is reported with its page and line, figures falsified in the
real pages are found, and so are long sentences and retired words. scripts/results: what it records, and the index."""

import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ORIGIN = '{"commit": "0123456", "command": "coppice bench decode", "driver": "none: CPU"}\n'
RAW = "bench/results/decode/2026-01-02_zen5.txt"
BASE = {
    "README.md": f"# A\n\nFast, see [results](docs/results.md#decoding): 26,065 tokens/s ([raw]({RAW})).\n\n```cpp\nint x = 1;\n```\n",
    "docs/results.md": "# Results\n\n## Decoding\n\nWith [raw](../"
    + RAW
    + "):\n\n| n | tree, ms | store, ms | ratio |\n|---|---|---|---|\n"
    "| 256 | 4.25 | 8.50 | 2.0x |\n\nIt falls by 50%, as the paper's 60%.\n\n"
    "<!-- derived: 50% = 1 - 4251 / 8502 -->\n<!-- quoted: 60; the paper -->\n",
    "docs/page.md": "# Page\n\n`Engine::Step`, `Step()` and `Batch` (`src/engine/engine.h`), `src/engine/engine`, `engine.{h,cc}`, `--fast`.\n"
    "`EngineTest.Steps`, `EngineTest.*`, `*Test.Step*` and `test_steps`.\n",
    "src/engine/engine.h": "struct Batch {};\nclass Engine { void Step(); };\n",
    "src/engine/engine.cc": 'const char* kOption = "--fast";  // see Engine::Step\n',
    "src/engine/engine_test.cc": "TEST_F(EngineTest, Steps) {}\n",
    "tests/engine_test.py": "def test_steps(): pass\n",
    "examples/main.cc": "  int x = 1;\n",
    RAW: ORIGIN + "decode 26064.9 t/s\nn 256 step_us 4251 8502\n",
}


def load():
    loader = importlib.machinery.SourceFileLoader("check_docs", os.path.join(ROOT, "scripts", "check_docs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_docs", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


CHECK_DOCS = load()


def write(root, files):
    for path, text in files.items():
        os.makedirs(os.path.dirname(os.path.join(root, path)) or root, exist_ok=True)
        with open(os.path.join(root, path), "w", encoding="utf-8") as file:
            file.write(text)


def check(changes):
    """The report on BASE with `changes` made: path -> text, or (old, new) of its text."""
    files = dict(BASE)
    for path, change in changes.items():
        files[path] = change if isinstance(change, str) else files[path].replace(*change)
        assert files[path] != BASE.get(path), f"{path}: nothing was changed"
    with tempfile.TemporaryDirectory() as root:
        write(root, files)
        return "\n".join(CHECK_DOCS.DocsCheck(root).run())


class CheckDocsTest(unittest.TestCase):
    def expect(self, path, change, line, reason):
        report = check({path: change})
        self.assertIn(f"{path}:{line}: ", report)
        self.assertIn(reason, report)

    def test_a_true_tree(self):
        self.assertEqual(check({"docs/other.md": "# Other\n"}), "")

    def test_the_program(self):
        for files, status in ((BASE, 0), ({**BASE, "README.md": "[x](y.md)\n"}, 1)):
            with tempfile.TemporaryDirectory() as root:
                write(root, files)
                run = subprocess.run(
                    [os.path.join(ROOT, "scripts", "check_docs"), root], capture_output=True, text=True, check=False
                )
                self.assertEqual((run.returncode, bool(run.stdout)), (status, bool(status)), run.stdout + run.stderr)

    def test_links(self):
        self.expect("README.md", ("docs/results.md#", "docs/result.md#"), 3, "links docs/result.md#decoding, which is not there")
        self.expect("README.md", ("#decoding", "#prefill"), 3, "docs/results.md has no such heading")
        code = "# Other\n\n`[x](nowhere.md)` and\n\n```text\n[x](nowhere.md)\n```\n"
        self.assertEqual(check({"docs/other.md": code}), "")  # code is no link

    def test_names(self):
        page = "docs/page.md"
        self.expect(page, ("Engine::Step", "Engine::Stop"), 3, "`Stop`, which is no word of the sources")
        self.expect(page, ("`Step()`", "`Stop()`"), 3, "`Stop`, which is no word")
        self.expect(page, ("--fast", "--faster"), 3, "`--faster`")
        self.expect(page, ("src/engine/engine`", "src/engine/motor`"), 3, "`src/engine/motor`, which is not in the tree")
        self.expect(page, ("engine.{h,cc}", "engine.{h,cu}"), 3, "`engine.cu`, which is not in the tree")
        self.expect(page, ("engine.h`)", "engine.cc`)"), 3, "`Batch` is not in src/engine/engine.cc")
        self.expect(page, ("EngineTest.Steps", "EngineTest.Stops"), 4, "`EngineTest.Stops`, which is no test")
        self.expect(page, ("`EngineTest.*`", "`Engine.*`"), 4, "`Engine.*`, which is no test")
        self.expect(page, ("*Test.Step*", "*Test.Stop*"), 4, "`*Test.Stop*`, which is no test")
        self.expect(page, ("test_steps", "test_stops"), 4, "`test_stops`, which is no word")
        self.expect("src/engine/engine.cc", ("Engine::Step", "Engine::Stop"), 1, "`Stop`, which is no word of the sources")

    def test_code(self):
        self.expect("README.md", ("int x = 1;", "int x = 2;"), 6, "no example has the line int x = 2;")

    def test_raw_files(self):
        self.expect(RAW, (ORIGIN, ""), 1, "does not say commit, command and driver")
        self.expect(RAW, ('"none: CPU"', '""'), 1, "does not say commit, command and driver")
        self.expect("bench/results/decode/2026-01-03_zen5.txt", ORIGIN, 1, "no page and no source cites it")
        self.expect("bench/results/decode/zen5.txt", ORIGIN, 1, "is not named")
        self.expect("src/engine/engine.cc", "// bench/results/decode/2026-01-04_zen5.txt\n", 1, "which is not there")
        self.expect("src/engine/engine.cc", "// bench/results/decode_zen5.txt\n", 1, "which is not there")
        placeholder = BASE["src/engine/engine.cc"] + "// bench/results/decode/DATE_CARD.txt\n"
        self.assertEqual(check({"src/engine/engine.cc": placeholder}), "")

    def test_figures(self):
        self.expect("README.md", ("26,065", "26,066"), 3, "the figure 26,066 tokens/s is not in")
        self.expect("README.md", (f" ([raw]({RAW}))", ""), 3, "the figure 26,065 tokens/s has no raw file")
        self.expect("docs/results.md", ("8.50 |", "8.60 |"), 9, "the figure 8.60 ms is not in")
        self.expect("docs/results.md", ("2.0x", "2.1x"), 9, "the figure 2.1 x is not in")
        self.expect("docs/results.md", ("by 50%", "by 40%"), 11, "the figure 40 % is not in")
        self.expect("docs/results.md", ("derived: 50%", "derived: 40%"), 11, "that is 50")
        self.expect("docs/results.md", ("4251 / 8502", "4351 / 8702"), 11, "4351 is in none of the raw files")
        self.expect("docs/results.md", ("quoted: 60", "quoted: 70"), 11, "the figure 60 % is not in")

    def test_lists_of_figures(self):
        numbers = lambda text: [(shown, unit) for _, shown, unit in CHECK_DOCS.figures(text)]
        self.assertEqual(numbers("1.5, 2 and 3.25 ms for n = 7"), [("1.5", "ms"), ("2", "ms"), ("3.25", "ms"), ("7", "")])
        self.assertEqual(
            numbers("Llama-3-8B on an H200, `5 ms`, 26,065 against 19,668 tokens/s"),
            [("26,065", "tokens/s"), ("19,668", "tokens/s")],
        )

    def test_falsified_figures_of_the_real_pages(self):
        """Each figure of four digits, with another first digit, in the page as it is."""
        real = CHECK_DOCS.DocsCheck(ROOT)
        for path in CHECK_DOCS.WITH_FIGURES:
            page = real.pages[path]
            real.check_figures(page)
            self.assertEqual(real.violations, [])
            tried, found = 0, 0
            for shown in sorted(set(re.findall(r"(?<![\w.,-])\d{1,2},\d{3}(?= \||x| tokens/s)", page.text))):
                digit = str(int(shown[0]) % 9 + 1)
                false = re.sub(rf"(?<![\w.,-]){shown}(?![\w,])", digit + shown[1:], page.text)
                real.check_figures(CHECK_DOCS.pages.Page(path, false))
                tried, found = tried + 1, found + bool(real.violations)
                real.violations.clear()
            self.assertGreater(tried, 4)
            self.assertGreater(found, 0.95 * tried, f"{path}: {found} of {tried}")


class ProseTest(unittest.TestCase):
    def violations(self, text, path="docs/other.md"):
        return check({path: text})

    def test_the_mean_of_words(self):
        sentence = " ".join(["Word"] + ["word"] * 20) + ". "
        self.assertIn("docs/other.md:3: 21.0 words a sentence", self.violations("# Other\n\n" + sentence * 2))
        self.assertEqual(self.violations("# Other\n\n" + sentence + "A short one.\n"), "")
        for path in ("docs/other_log.md", "docs/cli.md"):  # dated trials, and a page that is made from the sources
            self.assertEqual(self.violations(sentence, path), "")

    def test_lines_that_an_edit_has_left(self):
        line = "read from memory, and those that are read again from the cache.\n"
        self.assertIn("docs/other.md:4: ends as the line before it", self.violations("# Other\n\nSome tokens are " + line + "tokens " + line))
        for apart in ("\n", "- "):
            self.assertEqual(self.violations("# Other\n\nSome tokens are " + line + apart + "Tokens " + line), "")

    def test_what_is_no_sentence(self):
        words = "word " * 60
        blocks = (f"```sh\n{words}\n```", f"| {words} |\n|---|\n| {words} |", f"    {words}", f"## {words}", f"`{words}` is one word.")
        page = "# Other\n\n" + "\n\n".join(blocks) + "\n"
        self.assertEqual(self.violations(page), "")
        ends = "# Other\n\n- One item without a stop\n- another, e.g. this one\n\nA link ([x](page.md)). `Step()` ends. 2 more.\n"
        found = CHECK_DOCS.prose.sentences(CHECK_DOCS.pages.Page("docs/other.md", ends))
        self.assertEqual([(line, words) for line, words, _ in found], [(3, 5), (4, 5), (6, 3), (6, 2), (6, 2)])

    def test_retired_words(self):
        for text, found in (
            ("The team reads a task.", "team"),
            ("| a | the SMs are divided |\n|---|---|", "SMs are divided"),
            ("Side\ntiles stream.", "Side tiles"),
            ("## Where sharing pays", "pays"),
            ("The engine tells nobody.", "tells"),
            ("The engine tells nobody.", "nobody"),
            ("Requests wait in line.", "wait in line"),
            ("The planner shares not without a gain.", "not without"),
        ):
            self.assertIn(f'says "{found}"', self.violations(f"# Other\n\n{text}\n"))
        self.assertIn('docs/other.md:3: begins "What', self.violations("# Other\n\nWhat the plan reads is shared.\n"))

    def test_words_that_stay(self):
        for text in (
            "`coppice pull owner/name` is under memory pressure.",
            "Eight lanes of a warp load; a lane holds a token.",
            "A line of the file, and a line for each request.",
            "Fine-grained tasks of the `team_lanes`.",
            "A chain of pages. [x](https://example.com/who)",
            "## What a trace reveals",
        ):
            self.assertEqual(self.violations(f"# Other\n\n{text}\n"), "", text)

    def test_retired_words_of_sources(self):
        source = "// The side\n// tile of nobody.\nstruct TeamTask { int team_rows; };\n"
        found = [(line, text) for line, text, _ in CHECK_DOCS.prose.retired_of_source(source)]
        self.assertEqual(sorted(found), [(1, "side tile"), (2, "nobody"), (3, "Team"), (3, "team")])

    def test_subjects_of_comments(self):
        source = (
            "int a;  // f(a). What it reads\n        // is shared.\n"
            "// Reads a. What is\n// left is read by the\n// caller. Says what it reads.\n"
            'const char* url = "https://What.is/a/page of";  // What is it?\n'
        )
        found = list(CHECK_DOCS.prose.what_subjects_of_source("src/a.cc", source))
        self.assertEqual(found, [(1, "What it reads is"), (3, "What is left is")])
        docstring = 'def f():\n    """Reads.\n\n    What is left stays there.\n    """\n    return 1  # what is left\n'
        self.assertEqual(list(CHECK_DOCS.prose.what_subjects_of_source("a.py", docstring)), [(4, "What is left stays")])
        self.assertIn('src/a.cc:1: begins "What', self.violations("// What the plan reads is shared.\n", "src/a.cc"))

    def test_sources_without_retired_words(self):
        self.assertIn('src/a.cc:1: says "whoever"', self.violations("// As whoever calls it.\n", "src/a.cc"))
        self.assertIn('tests/a_test.py:2: says "nobody"', self.violations("def test_it():\n    nobody = 1\n", "tests/a_test.py"))
        cited = {"src/a.cc": "// bench/results/attention_wide_rows/2026-11-27_h100.txt\n"}  # a raw file keeps its name
        self.assertNotIn("says", check(cited))
        self.assertNotIn("says", self.violations('S = "It was told of."\n', "bench/document_questions.py"))
        self.assertIn('says "pays"', self.violations("# It pays.\n", "bench/document_questions.py"))


class ResultsTest(unittest.TestCase):
    def run_results(self, root, *arguments):
        return subprocess.run([os.path.join(root, "scripts", "results"), *arguments], capture_output=True, text=True, check=False)

    def test_records_and_indexes(self):
        with tempfile.TemporaryDirectory() as root:
            write(root, BASE)
            os.makedirs(os.path.join(root, "scripts"))
            for name in ("results", "pages.py"):
                os.symlink(os.path.join(ROOT, "scripts", name), os.path.join(root, "scripts", name))
            done = self.run_results(root, "record", "decode", "zen5_again", "echo", "12.5 ms")
            self.assertEqual(done.returncode, 0, done.stderr)
            path = os.path.join(root, done.stderr.split()[-1])
            with open(path, encoding="utf-8") as file:
                first, output = file.read().split("\n", 1)
            self.assertEqual((json.loads(first)["command"], output), ("echo 12.5 ms", "12.5 ms\n"))
            self.assertEqual(self.run_results(root, "record", "decode", "zen5_again", "true").returncode, 1)  # it is there
            self.assertEqual(self.run_results(root, "record", "decode", "zen5_fails", "false").returncode, 1)
            self.assertNotIn("fails", " ".join(os.listdir(os.path.dirname(path))))
            self.assertEqual(self.run_results(root, "index", "--check").returncode, 1)
            self.assertEqual(self.run_results(root, "index").returncode, 0)
            self.assertEqual(self.run_results(root, "index", "--check").returncode, 0)
            with open(os.path.join(root, "bench/results/index.md"), encoding="utf-8") as file:
                self.assertIn("[results.md: Decoding](../../docs/results.md#decoding)", file.read())


if __name__ == "__main__":
    unittest.main()
