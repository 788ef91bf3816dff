"""A server's files are its user's alone under any umask; files that others may change are reported; invalid records stop no start."""

import json
import os
import stat
import tempfile
import unittest

from batch_client import Client, requests
from server_process import Server, coppice


def modes(folder):
    """Permissions of what lies in a folder, which goes by the name of ''."""
    found = {"": stat.S_IMODE(os.stat(folder).st_mode)}
    for name in os.listdir(folder):
        found[name] = stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode)
    return found


class PrivateFilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.addCleanup(os.umask, os.umask(0))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def options(self):
        return "--files", self.path("files"), "--prefixes", self.path("above", "prefixes")

    def test_files_and_folders(self):
        with Server(*self.options()) as server:
            client = Client(server)
            self.assertEqual(server.ask("PUT", "/v1/prefixes/a", {"prompt": list(range(3, 40))})[0], 200)
            batch = client.create(client.upload(requests(3, 2)))
            client.wait(batch, lambda state: state["status"] == "completed")
            for folder, kinds in (("files", {".json", ".data", ""}), ("above/prefixes", {".json", ".safetensors"})):
                found = modes(self.path(folder))
                self.assertEqual(found.pop(""), 0o700, folder)
                self.assertEqual({os.path.splitext(name)[1] for name in found}, kinds)
                self.assertEqual(set(found.values()), {0o600}, found)
            self.assertNotIn("chmod", server.logged())

    def test_what_others_may_change_is_reported(self):
        os.mkdir(self.path("files"), 0o777)
        os.makedirs(self.path("above", "prefixes"))
        os.chmod(self.path("above", "prefixes"), 0o755)
        with open(self.path("keys"), "w", encoding="ascii") as keys:
            keys.write(coppice("key", "alice").stdout)
        os.chmod(self.path("keys"), 0o666)
        with Server(*self.options(), "--api-keys", self.path("keys")) as server:
            log = server.logged()
            self.assertIn(f"{self.path('files')} may be written to by others", log)
            self.assertIn(f"{self.path('above', 'prefixes')} may be read by others", log)
            self.assertIn(f"chmod 600 {self.path('keys')}", log)
        os.chmod(self.path("keys"), 0o640)  # a group that may read it is no problem: it holds no key
        with Server("--api-keys", self.path("keys")) as server:
            self.assertNotIn("chmod", server.logged())

    def test_what_is_no_record(self):
        with Server(*self.options()) as server:
            self.assertEqual(server.ask("PUT", "/v1/prefixes/a", {"prompt": [3, 4, 5]})[0], 200)
            file = Client(server).upload(requests(1, 1))
        for folder, name in (("above/prefixes", "x"), ("files", "file-" + "0" * 32), ("files", "batch_" + "0" * 32)):
            os.mkfifo(self.path(folder, name + ".json"))
            os.symlink("/dev/zero", self.path(folder, name.replace("0", "1").replace("x", "y") + ".json"))
        os.mkfifo(self.path("files", "file-" + "2" * 32 + ".data"))
        with Server(*self.options()) as server:
            self.assertEqual([item["id"] for item in json.loads(server.ask("GET", "/v1/files")[2])["data"]], [file])
            self.assertEqual(len(json.loads(server.ask("GET", "/v1/prefixes")[2])["data"]), 1)
            self.assertEqual(server.logged().count("is left as it is"), 6)


if __name__ == "__main__":
    unittest.main()
