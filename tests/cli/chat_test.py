"""`coppice chat`: a conversation on a terminal, and line by line from a pipe."""

import json
import os
import tempfile
import unittest

from program import TINY, coppice, default_model_or_skip
from terminal_test import Terminal

MODEL = default_model_or_skip()
CHAT = ["chat", "--model", MODEL, "--max-tokens", "8", "--temperature"]


class PipeTest(unittest.TestCase):
    def chat(self, *lines, temperature=0, options=(), status=0):
        done = coppice(*CHAT, temperature, "--quiet", *options, stdin="".join(line + "\n" for line in lines))
        self.assertEqual(done.returncode, status, done)
        return done

    def test_answers_are_those_of_run(self):
        question = "What is the capital of France?"
        answer = coppice("run", "--model", MODEL, "--chat", "--temperature", "0", "--max-tokens", "8", "--quiet", "--prompt", question).stdout
        self.assertEqual(self.chat(question).stdout, answer)

    def test_history_and_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "chat.json")
            self.chat("/system Be brief.", "Hello there", '"""two', 'lines"""', "one \\", "more", f"/save {path}")
            with open(path, encoding="utf-8") as file:
                messages = json.load(file)["messages"]
            self.assertEqual([m["role"] for m in messages], ["system", "user", "assistant", "user", "assistant", "user", "assistant"])
            self.assertEqual([m["content"] for m in messages if m["role"] != "assistant"], ["Be brief.", "Hello there", "two\nlines", "one \nmore"])
            again = os.path.join(folder, "again.json")
            for begin in (["--load", path], []):
                self.chat(*([] if begin else [f"/load {path}"]), f"/save {again}", options=begin)
                with open(again, encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["messages"], messages)

    def test_saving_harms_no_other_file(self):
        with tempfile.TemporaryDirectory() as folder:
            notes, fifo, link, path = (os.path.join(folder, name) for name in ("notes.txt", "fifo", "link", "chat.json"))
            with open(notes, "w", encoding="utf-8") as file:
                file.write("my notes\n")
            os.mkfifo(fifo)
            os.symlink(path, link)
            self.assertIn("holds something else than a conversation", self.chat("/system One.", f"/save {notes}", status=2).stderr)
            with open(notes, encoding="utf-8") as file:
                self.assertEqual(file.read(), "my notes\n")
            self.assertIn("is a pipe, expected a regular file", self.chat("/system One.", f"/save {fifo}", status=2).stderr)
            for words in ("One.", "Two."):  # the second one replaces the first
                self.chat(f"/system {words}", f"/save {link}")
                with open(path, encoding="utf-8") as file:
                    self.assertEqual([message["content"] for message in json.load(file)["messages"]], [words])
            self.assertTrue(os.path.islink(link))

    def test_samples_votes_and_picks(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "chat.json")
            done = self.chat("/n 3", "/vote ([A-Z][a-z]*)", "Name a color.", "/pick 2", f"/save {path}", temperature=1.2, options=["--seed", "3"])
            headings = [line for line in done.stdout.splitlines() if line.startswith("--- sample ")]
            self.assertEqual(len(headings), 3)
            self.assertIn("vote:", done.stdout)
            with open(path, encoding="utf-8") as file:
                answer = json.load(file)["messages"][-1]["content"]
            body = done.stdout[done.stdout.index("--- sample 2"):].split("\n", 1)[1]
            self.assertTrue(body.startswith(answer), (answer, done.stdout))

    def test_the_end_of_the_input_ends_a_message(self):
        answer = self.chat('"""Name a tree."""').stdout
        self.assertNotEqual(answer, "")
        self.assertEqual(self.chat('"""Name a tree.').stdout, answer)

    def test_what_is_stored(self):
        self.assertIn("nothing is stored yet", self.chat("/tree").stdout)
        self.assertRegex(self.chat("Hello there, my friend, how are you today?", "And you?", "/tree").stdout, r"tokens 0 to \d+: \d+ tokens stored once, found again \d+ times")

    def test_mistakes_end_a_pipe(self):
        for line, words in (("/sistem x", "did you mean /system?"), ("/n zero", '/n has "zero"'), ("/n 0", "at least 1"), ("/pick 4", "4 is none of them"),
                            ("/load nosuch.json", "nosuch.json"), ("/vote (", "answer pattern (:"), ("/save", "/save needs")):
            with self.subTest(line):
                self.assertIn(words, self.chat(line, "never asked", status=2).stderr)

    def test_a_model_without_text(self):
        done = coppice("chat", "--model", TINY, stdin="hi\n")
        self.assertEqual(done.returncode, 2)
        self.assertIn("tokenizer", done.stderr)


class TerminalChatTest(unittest.TestCase):
    def test_a_conversation(self):
        terminal = Terminal("chat", "--model", MODEL, "--temperature", "0", "--max-tokens", "900")
        self.addCleanup(terminal.close)
        terminal.read(until="> $")
        terminal.type("/sistem x\r")  # a mistake does not end it
        terminal.read(until=r"did you mean /system\?[^>]*> $")
        terminal.type("Tell me a long story about a forest.\r")
        terminal.read(until=r"forest\.\r\n.*\w+ \w+ \w+")  # it streams
        terminal.type("\x03")  # ends the answer alone
        terminal.text = terminal.text[-200:]
        terminal.read(until="> $")
        terminal.type("/tree\r")
        terminal.read(until=r"tokens stored once[^>]*> $")
        terminal.type("\x04")
        status, _ = terminal.end()
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
