#!/usr/bin/env python3
"""Writes what a paper's script measured into its page: bench/papers/report.py PAGE.md RESULTS.jsonl...

A page marks where a table and its plot stand, and what is between the marks is replaced:

    <!-- table MODEL MAX_TOKENS FIGURE -->
    <!-- end -->
    <!-- load WORKLOAD MODEL -->
    <!-- end -->
    <!-- steps WORKLOAD MODEL -->
    <!-- end -->
    <!-- layer HEADS REQUESTS -->
    <!-- end -->

table: decoding. FIGURE names the paper's own figures in published.json: "bifurcated table6". Rows are samples, columns prefixes; a cell
has Coppice's figure, and the paper's in brackets. x: memory has no room. load: requests per second of a workload, a column a mode.
steps: seconds of a workload's steps by their kind; where no-attention was measured too, what of them is attention. layer: one layer of HEADS
query heads, the gain of the plan over store (and over none in the last column) by prefix, suffix and requests, a list with commas. The
plot beside PAGE.md is written as PAGE_MODEL_TOKENS.svg or PAGE_WORKLOAD_MODEL.svg.
"""

import json
import math
import pathlib
import re
import sys

MODES = ["tree", "one-level", "store", "none", "no-attention"]
COLORS = {"tree": "#1a7f37", "one-level": "#0969da", "store": "#bf8700", "none": "#cf222e", "no-attention": "#6e7781"}
MODE_ORDER = lambda mode: ([*MODES].index(mode.split()[0]), mode)


def read_rows(paths):
    """The head of the first file, and the rows of all."""
    heads, rows = [], []
    for path in paths:
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        heads.append(head)
        rows += [line for line in lines if "prompt_tokens" in line or "modes" in line]
    return heads[0], rows


def mode_of(row):
    kinds = row.get("kinds", "auto")
    return row["sharing"] + ("" if kinds == "auto" else f" {kinds}")


def load_table(rows):
    """Requests per second: cases down, modes across, and what tree gains."""
    modes = sorted({mode_of(row) for row in rows}, key=MODE_ORDER)
    cells = {(row["label"], row["x"], mode_of(row)): row["result"]["requests_per_second"] for row in rows}
    against = [mode for mode in modes if mode not in ("tree", "no-attention")]
    text = ["", f"| | {rows[0]['x_label']} | " + " | ".join(f"`{mode}`" for mode in modes) + " | " + " | ".join(f"tree over {mode}" for mode in against) + " |"]
    text.append("|---" * (2 + len(modes) + len(against)) + "|")
    for label, x in dict.fromkeys((row["label"], row["x"]) for row in rows):
        numbers = [cells.get((label, x, mode)) for mode in modes]
        gains = [cells[label, x, "tree"] / cells[label, x, mode] if (label, x, mode) in cells else None for mode in against]
        text.append(f"| {label} | {x:,.0f} | " + " | ".join("" if n is None else f"{n:.2f}" for n in numbers + gains) + " |")
    return "\n".join(text)


def steps_table(rows):
    """Seconds by kind of step, a column a mode; attention: what a mode's steps take beyond those without any."""
    modes = sorted({mode_of(row) for row in rows}, key=MODE_ORDER)
    with_attention = [mode for mode in modes if mode != "no-attention"]
    columns = [f"`{mode}`" for mode in with_attention] + (["without attention"] + [f"attention of `{mode}`" for mode in with_attention] if "no-attention" in modes else [])
    text = ["", "| | steps | number | " + " | ".join(columns) + " |", "|---" * (3 + len(columns)) + "|"]
    for label, x in dict.fromkeys((row["label"], row["x"]) for row in rows):
        by_mode = {mode_of(row): row["result"]["steps_by_kind"] for row in rows if (row["label"], row["x"]) == (label, x)}
        for kind in ("prefill", "hybrid", "decode"):
            numbers = sorted({kinds[kind]["steps"] for kinds in by_mode.values()})
            seconds = {mode: kinds[kind]["seconds"] for mode, kinds in by_mode.items()}
            cells = [f"{seconds[mode]:.2f}" if mode in seconds else "" for mode in with_attention]
            if "no-attention" in modes:
                bare = seconds.get("no-attention")
                cells.append("" if bare is None else f"{bare:.2f}")
                cells += ["" if bare is None or not seconds.get(mode) else f"{seconds[mode] - bare:.2f}, {100 * (1 - bare / seconds[mode]):.0f} %" for mode in with_attention]
            text.append(f"| {label}, {x:,.0f} | {kind} | {' to '.join(f'{n:,}' for n in dict.fromkeys((numbers[0], numbers[-1])))} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def layer_table(rows, requests):
    """The plan's gain over reading the prefix once a request: prefixes and suffixes down, requests across."""
    cells = {tuple(int(part) for part in row["tree"].replace("x", ",").split(",")): row for row in rows}
    text = ["", "| prefix | suffix | " + " | ".join(f"{count:,}" for count in requests) + f" | {requests[-1]:,}, over `none` |", "|---" * (3 + len(requests)) + "|"]
    gain = lambda row, mode: "" if row is None else "x" if "out_of_memory" in row else f"{row['modes'][mode]['over_planned']:.2f}"
    for prefix, suffix in sorted({case[:2] for case in cells}):
        last = cells.get((prefix, suffix, requests[-1]))
        gains = [gain(cells.get((prefix, suffix, count)), "store") for count in requests] + [gain(last, "none")]
        text.append(f"| {prefix:,} | {suffix:,} | " + " | ".join(gains) + " |")
    return "\n".join(text)


def value(row, unit):
    if "out_of_memory" in row:
        return "x"
    number = row["step_ms"] if unit == "step_ms" else row["decode_tokens_per_second"]
    return f"{number:.2f}" if unit == "step_ms" else f"{number:,.0f}"


def paper_value(published, mode, prompt, samples):
    numbers = published.get(mode, {})
    key = f"{prompt} {samples}"
    if key not in numbers:
        return ""
    number = numbers[key]
    return " (x)" if number is None else f" ({number:g})" if published["unit"] == "step_ms" else f" ({number:,})"


def table(rows, published):
    """A table for each mode that was measured: samples down, prefixes across."""
    text = []
    for mode in MODES:
        of_mode = {(row["prompt_tokens"], row["samples"]): row for row in rows if row["sharing"] == mode}
        if not of_mode:
            continue
        prompts = sorted({prompt for prompt, _ in of_mode})
        text += ["", f"| `{mode}`, n | " + " | ".join(f"{prompt:,}" for prompt in prompts) + " |", "|---" * (1 + len(prompts)) + "|"]
        for samples in sorted({n for _, n in of_mode}):
            row = lambda prompt, samples=samples: of_mode.get((prompt, samples))
            cells = [value(row(prompt), published["unit"]) + paper_value(published, mode, prompt, samples) if row(prompt) else "" for prompt in prompts]
            text.append(f"| {samples:,} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def decode_plot(rows, prompt, title):
    """Milliseconds of a step over samples, a line a mode."""
    lines = {}
    for row in rows:
        if row["prompt_tokens"] == prompt and "step_ms" in row:
            lines.setdefault(row["sharing"], []).append((row["samples"], row["step_ms"]))
    return plot(lines, title, "samples")


def load_plot(rows, title):
    """Requests per second over what varies, a line a mode and a kind of request."""
    lines = {}
    for row in rows:
        lines.setdefault(mode_of(row), []).append((row["x"], row["result"]["requests_per_second"]))
    return plot(lines, title, rows[0]["x_label"])


def plot(lines, title, x_label):
    """Both axes logarithmic."""
    points = [point for line in lines.values() for point in line]
    left, top, width, height = 60, 30, 380, 240
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_end, y_begin, y_end = math.log2(max(max(xs), 2)), math.floor(math.log2(min(ys))), math.ceil(math.log2(max(ys)) + 1e-9)
    x_begin = math.log2(min(xs))
    place = lambda x, y: (left + (math.log2(x) - x_begin) / max(x_end - x_begin, 1) * width, top + height - (math.log2(y) - y_begin) / max(y_end - y_begin, 1) * height)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 320" font-family="sans-serif" font-size="12"><rect width="600" height="320" fill="#fff"/><text x="{left}" y="18">{title}</text>']
    for power in range(y_begin, y_end + 1):
        _, y = place(min(xs), 2.0**power)
        svg.append(f'<path d="M{left} {y:.1f}H{left + width}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{2.0**power:g}</text>')
    for x in sorted(set(xs)):
        at, _ = place(x, 2.0**y_begin)
        svg.append(f'<text x="{at:.1f}" y="{top + height + 18}" text-anchor="middle">{x}</text>')
    svg.append(f'<text x="{left + width / 2}" y="312" text-anchor="middle">{x_label}</text>')
    for number, mode in enumerate(sorted(lines, key=MODE_ORDER)):
        line = sorted(lines[mode])
        path = " ".join(f"{'L' if i and line[i - 1][0] != point[0] else 'M'}{place(*point)[0]:.1f} {place(*point)[1]:.1f}" for i, point in enumerate(line))
        svg.append(f'<path d="{path}" fill="none" stroke="{COLORS[mode.split()[0]]}" stroke-width="2"/>')
        svg += [f'<circle cx="{place(*point)[0]:.1f}" cy="{place(*point)[1]:.1f}" r="3" fill="{COLORS[mode.split()[0]]}"/>' for point in line]
        svg.append(f'<rect x="460" y="{40 + 20 * number}" width="12" height="12" fill="{COLORS[mode.split()[0]]}"/><text x="478" y="{50 + 20 * number}">{mode}</text>')
    return "\n".join(svg) + "\n</svg>\n"


def main():
    page, paths = pathlib.Path(sys.argv[1]), [pathlib.Path(path) for path in sys.argv[2:]]
    published = json.loads((pathlib.Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
    head, rows = read_rows(paths)

    def draw(name, svg):
        path = page.with_name(f"{page.stem}_{name}.svg")
        path.write_text(svg, encoding="utf-8")
        return f"![]({path.name})"

    def fill(match):
        model, tokens, figure = match.group(1), int(match.group(2)), match.group(3)
        chosen = [row for row in rows if row.get("model") == model and row.get("max_tokens") == tokens]
        if not chosen:
            sys.exit(f"{page} has a table of {model} with {tokens} tokens a sample, and the results have none")
        longest = max(row["prompt_tokens"] for row in chosen)
        image = draw(f"{model}_{tokens}", decode_plot(chosen, longest, f"{model}, {head['card']}: ms a step over a prefix of {longest:,} tokens"))
        return f"<!-- table {model} {tokens} {figure} -->\n{table(chosen, published[figure])}\n\n{image}\n<!-- end -->"

    def fill_load(match):
        workload, model = match.groups()
        chosen = [row for row in rows if row.get("workload") == workload and row.get("model") == model]
        if not chosen:
            sys.exit(f"{page} has a table of {workload} by {model}, and the results have none")
        labels = list(dict.fromkeys(row["label"] for row in chosen))
        chosen.sort(key=lambda row: (labels.index(row["label"]), row["x"]))
        image = draw(f"{workload}_{model}", load_plot(chosen, f"{workload}, {model}, {head['card']}: requests/s")) if len({row["x"] for row in chosen}) > 1 else ""
        return f"<!-- load {workload} {model} -->\n{load_table(chosen)}\n\n{image}\n<!-- end -->"

    def fill_steps(match):
        workload, model = match.groups()
        chosen = [row for row in rows if row.get("workload") == workload and row["model"] == model and row.get("schedule") == "mixed"]
        if not chosen:
            sys.exit(f"{page} has steps of {workload} by {model}, and the results have none")
        return f"<!-- steps {workload} {model} -->\n{steps_table(chosen)}\n<!-- end -->"

    def fill_layer(match):
        heads, requests = int(match.group(1)), [int(count) for count in match.group(2).split(",")]
        chosen = [row for row in rows if row.get("command") == "attention" and row["num_qo_heads"] == heads and row["tree"].count(",") == 1]
        if not chosen:
            sys.exit(f"{page} has a layer of {heads} heads, and the results have none")
        return f"<!-- layer {match.group(1)} {match.group(2)} -->\n{layer_table(chosen, requests)}\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- steps (\S+) (\S+) -->\n.*?<!-- end -->", fill_steps, text, flags=re.DOTALL)
    text = re.sub(r"<!-- layer (\d+) (\S+) -->\n.*?<!-- end -->", fill_layer, text, flags=re.DOTALL)
    text = re.sub(r"<!-- table (\S+) (\d+) (.*?) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)
    page.write_text(re.sub(r"<!-- load (\S+) (\S+) -->\n.*?<!-- end -->", fill_load, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
