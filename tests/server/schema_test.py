"""Schemathesis makes requests of /openapi.json, right and wrong ones: no answer is a 5xx or one that the document does not have. Skipped
where Schemathesis is missing."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

from server_process import ROOT, Server

if not importlib.util.find_spec("schemathesis"):
    print("skipped: there is no schemathesis package; scripts/test installs tests/server/requirements.txt")
    sys.exit(77)

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance", "unsupported_method"]


class SchemaTest(unittest.TestCase):
    def test_answers_are_those_of_the_document(self):
        with tempfile.TemporaryDirectory() as folder, Server("--max-running", 8, "--request-timeout", 5, "--files", os.path.join(folder, "files")) as server:
            command = [sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json"]
            options = ["--max-examples", "20", "--checks", ",".join(CHECKS), "--generation-deterministic", "--suppress-health-check", "all"]
            environment = os.environ | {"PYTHONPATH": os.path.join(ROOT, "build", "python-packages")}
            done = subprocess.run(command + options, env=environment, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
            self.assertIn(" passed", done.stdout)
            server.wait_for("coppice_http_requests_active", 0)


if __name__ == "__main__":
    unittest.main()
