"""Output that cannot be written is an error of every command, and no command harms a file that it did not write."""

import json
import os
import resource
import stat
import subprocess
import tempfile
import unittest

from program import COPPICE, TINY, coppice

RUN = ["run", "--model", TINY, "--prompt-ids", "5,6,7", "--max-tokens", "2"]
BENCH = ["bench", "decode", "--model", TINY, "--prompt-tokens", "4", "-n", "1", "--max-tokens", "2", "--repeats", "1"]
LOAD = ["bench", "throughput", "--model", TINY, "--requests", "2", "--groups", "1", "--shared-tokens", "4", "--unique-tokens", "2", "--output-tokens", "2",
        "--modes", "tree"]
ATTENTION = ["bench", "attention", "--tree", "16,8x2", "--repeats", "1", "--seconds", "0", "--qo-heads", "2", "--kv-heads", "1", "--head-dim", "64"]


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.input = self.path("in.jsonl", b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":[5],"max_tokens":1}}\n')

    def path(self, name, data=None):
        path = os.path.join(self.folder, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def batch(self, *args, output=None):
        return ["batch", self.input, self.path("out.jsonl") if output is None else output, "--model", TINY, *args]


class StandardOutputTest(FolderTest):
    def commands(self):
        return [["--help"], ["--version"], RUN, [*RUN, "--json"], [*RUN, "-n", "3", "--rank"], [*RUN, "--vote", "1"], self.batch(), ["inspect", "model", TINY],
                ["inspect", "model", TINY, "--json"], ["inspect", "plan", "--no-measure"], ["inspect", "plan", "--no-measure", "--json"], BENCH, LOAD, ATTENTION]

    def expect_failure(self, command, done):
        self.assertEqual(done.returncode, 1, (command, done))
        self.assertEqual(done.stderr.count("\n"), 1, (command, done.stderr))
        self.assertIn("cannot write to standard output", done.stderr)

    def test_full_disk(self):
        for command in self.commands():
            with self.subTest(command), open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([COPPICE, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
                self.expect_failure(command, done)
                self.assertIn("No space left on device", done.stderr)

    def test_closed(self):
        for command in self.commands():
            with self.subTest(command):
                done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", COPPICE, *command], stderr=subprocess.PIPE, text=True, timeout=120, check=False)
                self.expect_failure(command, done)

    def test_a_full_disk_ends_a_long_run_early(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([COPPICE, *RUN[:-1], "100000", "-n", "64", "--temperature", "50"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                                  check=False)
        self.expect_failure("long", done)


class DescriptorTest(FolderTest):
    def test_descriptors_0_to_2_never_become_files(self):
        lines = [json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5 + i], "max_tokens": 1 if i % 3 else -2}})
                 for i in range(12)]
        self.input = self.path("in.jsonl", "\n".join(lines).encode())
        for closed in range(8):
            with self.subTest(closed=closed):
                output = self.path(f"out{closed}.jsonl")
                redirections = " ".join(redirection for fd, redirection in enumerate(("<&-", ">&-", "2>&-")) if closed >> fd & 1)
                done = subprocess.run(["sh", "-c", f'exec "$@" {redirections}', "sh", COPPICE, *self.batch(output=output)], stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 1, done)  # four lines are refused
                records = [json.loads(text) for text in self.read(output).decode().splitlines()]
                self.assertEqual(len(records), 8)
                errors = [json.loads(text) for text in self.read(output + ".errors").decode().splitlines()]
                self.assertEqual(len(errors), 4)

    def test_a_closed_input_is_an_empty_one(self):
        done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", COPPICE, "run", "--model", TINY], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)


class OutputFileTest(FolderTest):
    """Each option that names an output, by what lies there."""

    def outputs(self):
        """Name, command line up to the file's name, and how its contents begin."""
        return [("save-prefix", lambda path: [*RUN, "--save-prefix", path]), ("out", lambda path: [*BENCH, "--out", path]),
                ("load-out", lambda path: [*LOAD, "--out", path]), ("html", lambda path: [*LOAD, "--html", path]),
                ("attention-out", lambda path: [*ATTENTION, "--out", path]), ("errors", lambda path: self.batch("--errors", path)),
                ("output", lambda path: self.batch(output=path))]

    def refused(self, command, *words):
        done = coppice(*command)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), (command, done))
        for word in words:
            self.assertIn(word, done.stderr)

    def test_what_is_no_regular_file_is_refused(self):
        os.mkfifo(self.path("pipe"))
        os.mkdir(self.path("folder"))
        os.symlink("pipe", self.path("link-to-pipe"))
        kinds = {"pipe": "a pipe", "folder": "a folder", "link-to-pipe": "a pipe"}
        if os.geteuid() == 0:
            for name, minor in (("null", 3), ("full", 7), ("zero", 5)):
                os.mknod(self.path(name), stat.S_IFCHR | 0o666, os.makedev(1, minor))
                kinds[name] = "a device"
            os.symlink("null", self.path("link-to-null"))
            kinds["link-to-null"] = "a device"
        for name, kind in kinds.items():
            for option, command in self.outputs():
                with self.subTest(option=option, kind=name):
                    before = os.lstat(self.path(name))
                    self.refused(command(self.path(name)), kind)
                    self.assertEqual(os.lstat(self.path(name))[:2], before[:2])  # mode and inode: still the same thing

    def test_the_file_of_standard_output_is_refused(self):
        for option, command in self.outputs():
            with self.subTest(option), open(self.path("table"), "w", encoding="utf-8") as table:
                done = subprocess.run([COPPICE, *command(self.path("table"))], stdout=table, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 2, done)
                self.assertIn("standard output", done.stderr)
            done = subprocess.run([COPPICE, *command("/dev/stdout")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertIn("a pipe", done.stderr)

    def test_files_of_others_are_left_alone(self):
        for option, command in self.outputs():
            for data in (b"my notes\n", b"notes without an end", b'{"id": 1}\n', b"\x00\xff\n", b'{"a": [1, 2]}'):
                with self.subTest(option=option, data=data):
                    path = self.path("notes", data)
                    self.refused(command(path), "notes")
                    self.assertEqual(self.read(path), data)

    def test_own_files_and_empty_ones_are_replaced_through_links(self):
        for option, command in self.outputs():
            if option in ("errors", "output"):
                continue
            with self.subTest(option):
                target, link = self.path(option + ".target"), self.path(option + ".link")
                os.symlink(os.path.basename(target), link)
                before = os.umask(0o027)
                self.assertEqual(coppice(*command(link)).returncode, 0)  # through a link to nothing
                os.umask(before)
                self.assertTrue(os.path.islink(link))
                self.assertEqual(stat.S_IMODE(os.stat(target).st_mode), 0o640)
                os.chmod(target, 0o600)
                size = os.path.getsize(target)
                self.assertGreater(size, 0)
                self.assertEqual(coppice(*command(link)).returncode, 0)  # what it wrote itself
                self.assertEqual(stat.S_IMODE(os.stat(target).st_mode), 0o600)
                self.path(option + ".target", b"")
                self.assertEqual(coppice(*command(target)).returncode, 0)
                self.assertGreater(os.path.getsize(target), 0)
                self.assertEqual([name for name in os.listdir(self.folder) if ".tmp" in name], [])

    def test_paths_that_cannot_be(self):
        for option, command in self.outputs():
            with self.subTest(option):
                self.refused(command(self.path("absent/file")), "No such file")
                self.refused(command(""), "empty")

    def test_a_limit_on_file_sizes(self):
        """SIGXFSZ does not kill; nothing half written stays."""
        path = self.path("prefix.safetensors")
        done = subprocess.run([COPPICE, *RUN[:-4], "--prompt-ids", ",".join(["7"] * 500), "--max-tokens", "1", "--save-prefix", path], capture_output=True, text=True,
                              timeout=60, check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.jsonl"])


if __name__ == "__main__":
    unittest.main()
