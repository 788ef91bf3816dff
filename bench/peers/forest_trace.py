"""Forest traces (docs/traces.md) for scripts that replay them: a step's tree as arrays, page tables and levels. Needs no package."""

import gzip
import json

KV_LIVE = 2**31 - 1  # end of a node that ends with its branch, as in coppice/attention/attention_c.h
NO_PARENT = -1


class Step:
    """A step's forest. nodes: id -> (parent, tokens, None up to its branch's end); branches: id -> (node, kv_len, queries)."""

    def __init__(self, nodes, branches):
        self.nodes, self.branches = nodes, branches

    def path(self, node):
        """Nodes from the root on."""
        path = []
        while node != NO_PARENT:
            path.append(node)
            node = self.nodes[node][0]
        return path[::-1]


class Trace:
    """path, head: the first line's object, num_steps, and steps: [(number from 1, Step)] of those that are replayed."""

    def __init__(self, path, most_steps=0):
        self.path = path
        with open(path, "rb") as file:
            packed = file.read()
        lines = (gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed).decode().splitlines()
        self.head = json.loads(lines[0]) if lines else None
        if not isinstance(self.head, dict) or self.head.get("format") != "coppice forest trace":
            raise ValueError(f"{path}:1: is no forest trace, which begins with {{\"format\":\"coppice forest trace\"")
        if self.head.get("version") != 1:
            raise ValueError(f"{path}:1: version is {self.head.get('version')}, expected 1")
        self.num_steps = len(lines) - 1
        wanted = min(most_steps or self.num_steps, self.num_steps)
        chosen = {(2 * i + 1) * self.num_steps // (2 * wanted) + 1 for i in range(wanted)}
        nodes, branches, self.steps = {}, {}, []
        for number, line in enumerate(lines[1:], 1):
            try:
                apply(json.loads(line), nodes, branches)
            except (KeyError, TypeError, ValueError) as problem:
                raise ValueError(f"{path}:{number + 1}: {problem!r}") from problem
            if number in chosen:
                self.steps.append((number, Step(dict(nodes), dict(branches))))


def apply(delta, nodes, branches):
    """Makes the step before into the step of a line."""
    for branch, (node, kv_len, queries) in branches.items():
        branches[branch] = (node, kv_len + queries, queries)
    for branch in delta.get("branches_gone", ()):
        del branches[branch]
    for node in delta.get("nodes_gone", ()):
        del nodes[node]
    for node, parent, tokens in delta.get("nodes", ()):
        nodes[node] = (parent, None if tokens < 0 else tokens)
    for branch, node, kv_len, queries in delta.get("branches", ()):
        branches[branch] = (node, kv_len, queries)


class Layout:
    """The requests of a step, those with queries, in depth-first order, on pages of its own: a page belongs to the node of its last
    token, if all queries of all requests below see it whole.

    parent, begin, end: of nodes; leaves, queries, kv_len, page_rows: of requests; num_pages; levels: of each, from the roots on,
    [(requests, pages)] of its groups, all pages full; the last one has each request's own pages, the last of which may not be.
    copies: [(page, page, first slot, slot behind the last)], tokens of one node that have pages of several requests: what the first
    page holds belongs into the second, too."""

    def __init__(self, step, page_size):
        ids = sorted(b for b, (_, _, queries) in step.branches.items() if queries > 0)
        paths = {b: step.path(step.branches[b][0]) for b in ids}
        ids.sort(key=lambda b: (paths[b], b))
        used = sorted({node for b in ids for node in paths[b]})
        slot = {node: i for i, node in enumerate(used)}
        self.queries = [step.branches[b][2] for b in ids]
        self.kv_len = [step.branches[b][1] for b in ids]
        self.parent = [slot.get(step.nodes[node][0], NO_PARENT) for node in used]
        self.leaves = [slot[paths[b][-1]] for b in ids]
        ends = {NO_PARENT: 0}
        begins = {}
        for b in ids:
            for node in paths[b]:
                parent, tokens = step.nodes[node]
                begins[node] = ends[parent]
                ends[node] = KV_LIVE if tokens is None else begins[node] + tokens
        self.begin, self.end = [begins[node] for node in used], [ends[node] for node in used]
        seen = {node: KV_LIVE for node in used}  # by all queries of all requests below
        for b, queries, kv_len in zip(ids, self.queries, self.kv_len):
            for node in paths[b]:
                seen[node] = min(seen[node], ends[node], kv_len - queries + 1)
        self.num_pages = 0
        own = {}
        last = {NO_PARENT: 0}  # pages up to the end of a node
        for b in ids:
            for node in paths[b]:
                if node in own:
                    continue
                first = last[step.nodes[node][0]]
                last[node] = max(first, seen[node] // page_size) if ends[node] != KV_LIVE else first
                own[node] = self.take(last[node] - first)
        depth = max(len(paths[b]) for b in ids)
        shared = [[own[node] for node in paths[b]] for b in ids]
        rest = [self.take(-(-kv_len // page_size) - sum(map(len, pages))) for pages, kv_len in zip(shared, self.kv_len)]
        self.page_rows = [sum(pages, []) + tail for pages, tail in zip(shared, rest)]
        self.levels = []
        for level in range(depth):
            groups = []
            for i, b in enumerate(ids):
                node = paths[b][level] if level < len(paths[b]) else None
                if node is not None and i > 0 and paths[ids[i - 1]][level:level + 1] == [node]:
                    groups[-1][0].append(i)
                else:
                    groups.append(([i], own[node] if node is not None else []))
            if any(pages for _, pages in groups):
                self.levels.append(groups)
        self.levels.append([([i], pages) for i, pages in enumerate(rest)])

        self.copies = []
        first = {}  # request by node
        for i, b in enumerate(ids):
            for node in paths[b]:
                row, first_row = self.page_rows[i], self.page_rows[first.setdefault(node, i)]
                begin, end = begins[node], min(ends[node], self.kv_len[i])
                for page in range(begin // page_size, -(-end // page_size)):
                    if row[page] != first_row[page]:
                        at = page * page_size
                        self.copies.append((first_row[page], row[page], max(begin - at, 0), min(end - at, page_size)))

    def take(self, count):
        self.num_pages += count
        return list(range(self.num_pages - count, self.num_pages))
