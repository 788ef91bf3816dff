"""Markdown pages as GitHub shows them: blocks, sections, anchors, links. And the raw files under bench/results that pages link.

For scripts/check_docs and scripts/results; it prints nothing and writes nothing.
"""

import dataclasses
import json
import os
import re

LEFT_OUT = re.compile(r"build|__pycache__|\.(?!ci$).*")
RESULTS = "bench/results"
INDEX = RESULTS + "/index.md"
RESULT_NAME = re.compile(r"\d{4}-\d\d-\d\d_[a-z0-9]+(_[a-z0-9_]+)?\.(txt|jsonl|json|html|svg)")
ORIGIN_KEYS = ("commit", "command", "driver")

HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s")
LINK = re.compile(
    r"!?\[[^\]]*\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)|<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]+)\""
)
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)


@dataclasses.dataclass
class Block:
    """A paragraph, list item, table, fenced code ("code") or HTML comment ("comment"), and the anchor of its section."""

    line: int
    kind: str
    text: str
    section: str
    title: str


class Page:
    def __init__(self, path, text):
        self.path, self.text = path, text
        self.anchors, self.blocks = set(), []
        self._read()

    def _read(self):
        section = title = ""
        pending, start, fence = [], 0, None

        def flush():
            if pending:
                first = pending[0].lstrip()
                kind = "table" if first.startswith("|") else "comment" if first.startswith("<!--") else "text"
                self.blocks.append(Block(start, kind, "\n".join(pending), section, title))
                pending.clear()

        for number, line in enumerate(self.text.split("\n"), 1):
            if fence:
                pending.append(line)
                if line.strip().startswith(fence) and line.strip(" `~") == "":
                    self.blocks.append(Block(start, "code", "\n".join(pending), section, title))
                    pending.clear()
                    fence = None
            elif opened := re.match(r"^\s*(```+|~~~+)", line):
                flush()
                fence, start = opened.group(1), number
                pending.append(line)
            elif heading := HEADING.match(line):
                flush()
                title = plain(heading.group(2))
                section = self._anchor(title)
            elif not line.strip():
                flush()
            else:
                table, comment = line.lstrip().startswith("|"), line.lstrip().startswith("<!--")
                if ITEM.match(line) or comment or (pending and table != pending[0].lstrip().startswith("|")):
                    if not (pending and pending[0].lstrip().startswith("<!--") and "-->" not in "\n".join(pending)):
                        flush()
                if not pending:
                    start = number
                pending.append(line)
        flush()

    def _anchor(self, title):
        base = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        name, copy = base, 0
        while name in self.anchors:
            copy += 1
            name = f"{base}-{copy}"
        self.anchors.add(name)
        return name


def plain(text):
    """A heading's text without the marks of links, code and emphasis."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[`*]", "", text)


def without_code(text):
    """`text` with the content of code spans blanked out, lines kept."""
    return CODE.sub(lambda span: re.sub(r"[^\n]", " ", span.group(0)), text)


def links(text):
    """(offset, target) of each link and image outside code spans."""
    return [(found.start(), found.group(1) or found.group(2)) for found in LINK.finditer(without_code(text))]


def resolve(page, target):
    """The path in the repository and the anchor that a relative link of `page` means; None for links to elsewhere."""
    if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
        return None
    path, _, anchor = target.partition("#")
    return (os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page), anchor


class Tree:
    """The files of a checkout, build folders and hidden ones apart."""

    def __init__(self, root):
        self.root = root
        self.files = []
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not LEFT_OUT.fullmatch(name))
            self.files += sorted(os.path.relpath(os.path.join(folder, name), root) for name in names)
        self.paths = set(self.files)
        self.folders = {parent for path in self.files for parent in parents(path)}

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def exists(self, path):
        return path == "." or path in self.folders or path in self.paths

    def results(self):
        """The raw files, the index apart."""
        return [path for path in self.files if path.startswith(RESULTS + "/") and path != INDEX]


def parents(path):
    while path := os.path.dirname(path):
        yield path


def origin(path, text):
    """{commit, command, driver} from the first line of a raw file, or None."""
    line = text.partition("\n")[0].strip()
    if path.endswith(".json"):
        line = line.removeprefix('{"measured": ').rstrip(",")
    elif path.endswith((".html", ".svg")):
        line = line.removeprefix("<!-- ").removesuffix(" -->")
    try:
        said = json.loads(line)
    except ValueError:
        return None
    complete = isinstance(said, dict) and all(isinstance(said.get(key), str) and said[key] for key in ORIGIN_KEYS)
    return said if complete else None
