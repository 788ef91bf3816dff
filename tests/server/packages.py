"""Python packages that one test needs and that are too large to be installed for all of them."""

import os
import shutil
import subprocess
import sys

from server_process import ROOT


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def install_or_skip(name, test=__file__):
    """The folder build/NAME-packages with what requirements-NAME.txt beside `test` names; ends the test program as skipped where it cannot be
    installed."""
    requirements = os.path.join(os.path.dirname(os.path.abspath(test)), f"requirements-{name}.txt")
    folder = os.path.join(ROOT, "build", f"{name}-packages")
    installed = os.path.join(folder, ".requirements")
    if os.path.exists(installed) and _read(installed) == _read(requirements):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    arguments = ["--quiet", "--disable-pip-version-check", "--no-warn-script-location", "--target", folder, "--requirement", requirements]
    if subprocess.run([sys.executable, "-m", "pip", "install", *arguments], check=False).returncode != 0:
        print(f"skipped: {os.path.basename(requirements)} could not be installed")
        sys.exit(77)
    shutil.copy(requirements, installed)
    return folder
