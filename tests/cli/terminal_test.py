"""The program on a terminal of 80 columns: text that streams, progress that is rewritten in place, lines that fit, and what it says of words that
it does not know."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unicodedata
import unittest

from program import COPPICE, ROOT, TINY, coppice

COLUMNS = 80
CLEAR = "\r\x1b[K"
PROMPT = ["--model", TINY, "--prompt-ids", "5,6,7"]


class Terminal:
    """`coppice ARGS`, or another program, on a terminal of its own."""

    def __init__(self, *args, columns=COLUMNS, program=COPPICE):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen([program, *map(str, args)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,  # pylint: disable=consider-using-with
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        self.text = ""

    def read(self, until=None, seconds=120):
        """All that was written so far, up to `until` or the program's end."""
        deadline = time.monotonic() + seconds
        while until is None or not re.search(until, self.text):
            if not select.select([self.master], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise AssertionError(f"waited {seconds} s for {until}; there is {self.text[-2000:]!r}")
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # EIO: the program has ended
                piece = b""
            if not piece:
                if until is not None and not re.search(until, self.text):
                    raise AssertionError(f"it ended without {until}: {self.text[-2000:]!r}")
                break
            self.text += piece.decode("utf-8", "replace")
        return self.text

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        """The exit status once the program has ended, and all of its output."""
        text = self.read()
        status = self.process.wait(timeout=60)
        return status, text

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


def width(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in line)


def rows(text):
    """Texts that stood in a row of the screen at any time: lines, and those of a line before it was rewritten."""
    return [row for line in text.split("\n") for row in line.rstrip("\r").split(CLEAR)]


class TerminalTest(unittest.TestCase):
    def terminal(self, *args, columns=COLUMNS):
        terminal = Terminal(*args, columns=columns)
        self.addCleanup(terminal.close)
        return terminal

    def fits(self, *args, columns=COLUMNS, status=0):
        """The output of a command, no row of which is wider than the terminal."""
        ended, text = self.terminal(*args, columns=columns).end()
        self.assertEqual(ended, status, text)
        for row in rows(text):
            self.assertLessEqual(width(row), columns, (args, row))
        return text


def commands():
    """All commands, as the generated reference names them."""
    reference = coppice("help", "--markdown").stdout
    found = [line.removeprefix("### `coppice ").removesuffix("`").split() for line in reference.splitlines() if line.startswith("### ")]
    assert ["run"] in found and ["bench", "decode"] in found, found
    return found


class HelpTest(TerminalTest):
    def test_help_of_every_command_fits(self):
        for command in [[], ["bench"], ["inspect"], ["eval"], *commands()]:
            with self.subTest(command):
                everyday = self.fits(*command, "--help")
                everything = self.fits(*command, "--help-all")
                self.assertIn("Usage: coppice", everyday)
                self.assertGreaterEqual(len(everything), len(everyday))
                self.assertNotRegex(everything, r"\[b, kb|INT:|TEXT:| in \[")

    def test_a_narrow_terminal(self):
        self.fits("run", "--help-all", columns=50)

    def test_everyday_options_come_first_and_others_on_demand(self):
        everyday, everything = coppice("run", "--help").stdout, coppice("run", "--help-all").stdout
        self.assertLess(everyday.index("--prompt"), everyday.index("--samples"))
        self.assertLess(everyday.index("--samples"), everyday.index("--model"))
        self.assertNotIn("--max-graphs", everyday)
        self.assertIn("--max-graphs", everything)
        self.assertIn("--help-all", everyday)
        commands_of_help = re.findall(r"^  (\w+)", coppice("--help").stdout.split("Commands:")[1].split("\n\n")[0], re.MULTILINE)
        self.assertEqual(commands_of_help[:3], ["run", "chat", "serve"])

    def test_help_of_a_command(self):
        self.assertEqual(coppice("help", "bench", "decode").stdout, coppice("bench", "decode", "--help").stdout)
        self.assertEqual(coppice("help", "run", "--all").stdout, coppice("run", "--help-all").stdout)
        self.assertEqual(coppice("help").stdout, coppice("--help").stdout)
        unknown = coppice("help", "bench", "decod")
        self.assertEqual((unknown.returncode, unknown.stderr),
                         (2, 'coppice: there is no command "bench decod"; did you mean bench decode?; see coppice --help\n'))


class SuggestionTest(unittest.TestCase):
    def test_unknown_words(self):
        for args, words in ((["serv"], '"serv" is no command of coppice; did you mean serve?; see coppice --help'),
                            (["bench", "decod"], '"decod" is no command of coppice bench; did you mean decode?; see coppice bench --help'),
                            (["xyzzy"], '"xyzzy" is no command of coppice; see coppice --help'),
                            (["run", "--temprature", "0", "--prompt", "x"], '"--temprature" is no option of coppice run; did you mean --temperature?; see coppice run --help'),
                            (["run", "--prompt", "x", "--temprature=0"], "did you mean --temperature?"),
                            (["run", "--max-tok", "3"], "did you mean --max-tokens?"),
                            (["batch", "--eror", "x"], "did you mean --errors?"),
                            (["run", "hello"], 'coppice run takes no argument "hello"; see coppice run --help'),
                            ([], "no command given; see coppice --help"),
                            (["inspect"], "no command given; see coppice inspect --help"),
                            (["run", "--trace"], "--trace"),
                            (["serve", "--port", "80000"], "--port")):
            with self.subTest(args):
                done = coppice(*args)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)
                self.assertIn(words, done.stderr)


class GeneratedTest(unittest.TestCase):
    def test_docs_are_what_the_program_prints(self):
        with open(os.path.join(ROOT, "docs", "cli.md"), encoding="utf-8") as file:
            written = file.read().split("<!-- coppice help --markdown -->\n\n")[1]
        self.assertEqual(written, coppice("help", "--markdown").stdout, "write what `coppice help --markdown` prints into docs/cli.md")

    def test_man_page(self):
        page = coppice("help", "--man").stdout
        self.assertTrue(page.startswith(".TH COPPICE 1"))
        self.assertIn('.SH "coppice bench decode"', page)
        self.assertIn("\\-\\-max\\-tokens N", page)
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def complete(self, *words):
        script = f"""source <({COPPICE} completion bash); COMP_WORDS=(coppice "$@"); COMP_CWORD=$#; _coppice; printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(["bash", "-euc", script, "bash", *words], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("ser"), ["serve"])
        self.assertIn("decode", self.complete("bench", ""))
        self.assertEqual(self.complete("run", "--temp"), ["--temperature"])
        self.assertEqual(self.complete("inspect", "plan", "--device", ""), ["cpu", "cuda"])
        self.assertEqual(self.complete("run", "--prompt-file", "ru"), [])  # a file's name: bash's own
        self.assertIn("--prompt-tokens", self.complete("bench", "decode", "--prompt-t"))

    def test_other_shells_read_their_scripts(self):
        for shell, flags in (("zsh", ["-n"]), ("fish", ["--no-execute"])):
            script = coppice("completion", shell).stdout
            for words in ("temperature", "decode"):
                self.assertIn(words, script)
            if shutil.which(shell):
                with tempfile.NamedTemporaryFile("w") as file:
                    file.write(script)
                    file.flush()
                    done = subprocess.run([shell, *flags, file.name], capture_output=True, text=True, check=False, timeout=60)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_completes(self):
        script = coppice("completion", "fish").stdout
        for words, found in (("ser", "serve\tServe a model over HTTP with OpenAI's API"), ("bench deco", "decode"), ("run --temp", "--temperature")):
            done = subprocess.run(["fish", "--no-config", "-c", "source -; complete -C $argv[1]", f"coppice {words}"], input=script, capture_output=True,
                                  text=True, check=False, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith(found), done.stdout)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_completes(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "_coppice"), "w", encoding="utf-8") as file:
                file.write(coppice("completion", "zsh").stdout)
            terminal = Terminal("-f", "-i", program="zsh")
            self.addCleanup(terminal.close)
            terminal.type(f"PS1='> '; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -d {folder}/dump; print rea''dy\n")
            terminal.read(until="ready")
            for words, found in (("ser", "serve"), ("bench deco", "bench decode"), ("run --temp", "run --temperature")):
                terminal.type(f"coppice {words}\t")
                terminal.read(until=f"coppice {found}")
                terminal.type("\x15")  # the line is dropped


class StreamTest(TerminalTest):
    def test_text_comes_before_the_end(self):
        for _ in range(10):  # until it is not at its end when the key is pressed
            terminal = self.terminal("run", *PROMPT, "--max-tokens", 2000, "--ignore-eos", "--max-context", 2048)
            terminal.read(until=r"\d+,\d+,\d+,\d+")
            terminal.type("\x03")
            status, text = terminal.end()
            if status != 0:
                break
        self.assertEqual(status, 130)
        self.assertRegex(text, r"\d+,\d+[,\d^C]*\r\n\r\n\d+ tokens at [\d.]+/s; prompt 3 tokens.*; interrupted\r\n$")

    def test_a_pipe_has_the_text_alone(self):
        done = coppice("run", *PROMPT, "--max-tokens", 4, "--ignore-eos")
        self.assertRegex(done.stdout, r"\A\d+,\d+,\d+,\d+\n\Z")
        self.assertRegex(done.stderr, r"\A\n4 tokens at [\d.]+/s; prompt 3 tokens at [\d.]+/s; peak memory [^\n]*\n\Z")
        quiet = coppice("run", *PROMPT, "--max-tokens", 4, "--ignore-eos", "--quiet")
        self.assertEqual((quiet.stdout, quiet.stderr), (done.stdout, ""))

    def test_an_interrupt_keeps_what_a_pipe_has(self):
        for _ in range(10):  # until it is not at its end when the signal comes
            with subprocess.Popen([COPPICE, "run", *PROMPT, "--max-tokens", "2000", "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                first = process.stdout.read(4)
                process.send_signal(signal.SIGINT)
                rest, errors = process.stdout.read(), process.stderr.read()
            if process.returncode != 0:
                break
        self.assertEqual(process.returncode, 130)
        self.assertRegex((first + rest).decode(), r"\A(\d+,)*\d+\n\Z")
        self.assertIn(b"interrupted", errors)


class ProgressTest(TerminalTest):
    def test_it_fits_and_is_rewritten_twice_a_second_at_most(self):
        for columns in (80, 40):
            with self.subTest(columns):
                begin = time.monotonic()
                status, text = self.terminal("run", *PROMPT, "-n", 8, "--max-tokens", 1500, "--ignore-eos", "--json", "--max-running", 8, columns=columns).end()
                seconds = time.monotonic() - begin
                self.assertEqual(status, 0, text)
                shown = [row for row in rows(text.split("{")[0]) if row.startswith("[")]
                self.assertTrue(shown)
                self.assertLessEqual(len(shown), 2 * seconds + 2)
                for row in shown:
                    self.assertRegex(row, r"^\[#*\.*\] (prompt )?\d+/\d+ tok")  # the rest where there is room
                    self.assertLess(width(row), columns)

    def test_loading_is_reported(self):
        self.assertIn("loading llama-gqa", self.fits("run", *PROMPT, "--max-tokens", 1))
        self.assertNotIn("loading", self.fits("run", *PROMPT, "--max-tokens", 1, "--quiet"))

    def test_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
            with open(source, "w", encoding="utf-8") as file:
                for i in range(20):
                    file.write('{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5, %d], "max_tokens": 300, '
                               '"ignore_eos": true}}\n' % (i, i + 6))
            text = self.fits("batch", source, target, "--model", TINY)
            shown = [row for row in rows(text) if row.startswith("[")]
            self.assertTrue(any(re.search(r"\d+:\d\d left", row) for row in shown), shown)


class WidthTest(TerminalTest):
    """Reports of other commands; a path is as long as it is."""

    def test_reports_fit(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m")
            shutil.copytree(TINY, model)
            lines = os.path.join(folder, "t")
            with open(lines, "w", encoding="utf-8") as file:
                file.write("5 6 7\n")
            requests = os.path.join(folder, "r")
            with open(requests, "w", encoding="utf-8") as file:
                file.write('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5], "max_tokens": 4}}\n')
            for args in (["run", *PROMPT, "-n", 4, "--max-tokens", 8, "--baseline", "store"], ["run", *PROMPT, "-n", 4, "--max-tokens", 8, "--explain"],
                         ["run", *PROMPT, "-n", 4, "--max-tokens", 8, "--draft", "ngram", "--ignore-eos"], ["inspect", "model", model],
                         ["inspect", "plan", "--tree", "512,64x4,16x4", "--no-measure"], ["inspect", "plan", "--machine", "h200", "--no-measure"],
                         ["batch", requests, requests + "o", "--model", TINY, "--explain"], ["models"], ["key", "alice"],
                         ["bench", "attention", "--tree", "16,8x2", "--repeats", 2, "--seconds", 0, "--qo-heads", 2, "--kv-heads", 1, "--head-dim", 64],
                         ["bench", "update", "--model", TINY, "--repeats", 1],
                         ["bench", "decode", "--model", TINY, "--prompt-tokens", 64, "-n", 2, "--max-tokens", 4, "--repeats", 1, "--modes", "tree,no-attention"],
                         ["bench", "throughput", "--model", TINY, "--requests", 4, "--shared-tokens", 40, "--unique-tokens", 5, "--output-tokens", 4]):
                with self.subTest(args):
                    self.fits(*args)


class ExplainTest(unittest.TestCase):
    def test_run_says_what_was_read_together(self):
        prompt = ",".join(map(str, range(5, 45)))
        done = coppice("run", "--model", TINY, "--prompt-ids", prompt, "-n", 4, "--max-tokens", 8, "--ignore-eos", "--force-sharing", "--explain", "--quiet")
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(done.stderr, r"The fullest step, step \d+: 4 tokens of outputs")
        self.assertIn("4 samples read them together", done.stderr)
        self.assertIn("KV read by attention", done.stderr)

    def test_batch_says_it_too(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "in.jsonl")
            with open(source, "w", encoding="utf-8") as file:
                file.write('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5, 6], "max_tokens": 8, "n": 4, "ignore_eos": true}}\n')
            done = coppice("batch", source, os.path.join(folder, "out.jsonl"), "--model", TINY, "--explain")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("The fullest step, step ", done.stderr)

    def test_a_model_gives_heads(self):
        of_model = coppice("inspect", "plan", "--model", TINY, "--no-measure")
        by_hand = coppice("inspect", "plan", "--qo-heads", 6, "--kv-heads", 2, "--head-dim", 16, "--no-measure")
        self.assertEqual((of_model.returncode, of_model.stdout), (0, by_hand.stdout))
        both = coppice("inspect", "plan", "--model", TINY, "--qo-heads", 6, "--no-measure")
        self.assertEqual(both.returncode, 2)
        self.assertIn("--qo-heads", both.stderr)

    def test_names_of_machines_are_known_everywhere(self):
        for command in (["run", *PROMPT, "--max-tokens", 1], ["inspect", "plan", "--no-measure"]):
            with self.subTest(command):
                self.assertEqual(coppice(*command, "--machine", "zen5").returncode, 0)
                unknown = coppice(*command, "--machine", "h300")
                self.assertEqual(unknown.returncode, 2)
                self.assertIn("known:", unknown.stderr)
        self.assertEqual(coppice("inspect", "plan", "--machine", "h200").returncode, 0)
        refused = coppice("run", *PROMPT, "--device", "cpu", "--machine", "h200")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("machine model h200 is a GPU's", refused.stderr)


if __name__ == "__main__":
    unittest.main()
