#!/usr/bin/env python3
"""`coppice batch` on 256 questions about one long document, in the four sharing modes (Hydragen 4.3 and appendix E.3).

The document holds 261 facts "The dog named {name} has fur that is {color}." among sentences about nothing; five of the questions are
answered in the prompt as examples, 256 are asked, in one request each, all with the same prefix. Greedy, --max-tokens tokens each, of
which the first line is the answer. The mode `none` computes the whole prompt for each question: --none-questions bounds how many it is given, and
the table says so; --first lets it be run in pieces. Prints a table, and writes JSON with --out.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile

COLORS = ["black", "white", "brown", "gray", "red", "golden", "silver", "blue", "green", "yellow", "orange", "purple", "pink", "cream", "tan"]
SUBJECTS = ["The miller", "A traveler", "The old captain", "Our neighbor", "The baker", "A young clerk", "The gardener", "The schoolmaster"]
VERBS = ["walked slowly toward", "wrote a letter about", "could not forget", "was told of", "spent the winter near", "returned at dawn to", "looked for"]
OBJECTS = ["the river", "the stone bridge", "a small market", "the empty harbor", "the hills beyond the town", "the north road", "an abandoned orchard"]
EXAMPLES = 5


def make_names(count, rng):
    starts, ends = ["Bar", "Cor", "Del", "Fen", "Gal", "Hol", "Jas", "Kel", "Lor", "Mil", "Nor", "Per", "Rud", "Sol", "Tam", "Vel", "Wil", "Zan"], [
        "a", "bo", "dy", "go", "ick", "ka", "len", "mo", "na", "os", "per", "ra", "sie", "ton", "vin", "xi"]
    names = [start + end for start in starts for end in ends]
    return rng.sample(names, count)


def make_document(questions, filler, rng):
    """The document's text and its facts as (name, color)."""
    facts = [(name, rng.choice(COLORS)) for name in make_names(questions + EXAMPLES, rng)]
    sentences = [f"The dog named {name} has fur that is {color}." for name, color in facts]
    sentences += [f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}." for _ in range(filler)]
    rng.shuffle(sentences)
    return " ".join(sentences), facts


def question(name):
    return f"What color is the fur of the dog named {name}?\nAnswer:"


def write_batch(path, prefix, facts, max_tokens):
    with open(path, "w", encoding="utf-8") as file:
        for i, (name, _) in enumerate(facts):
            body = {"prompt": prefix + "Question: " + question(name), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
            file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")


def run_mode(options, mode, prefix, facts):
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        write_batch(source, prefix, facts, options.max_tokens)
        command = [options.coppice, "batch", source, target, "--sharing", mode] + (["--model", options.model] if options.model else [])
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        with open(target, encoding="utf-8") as file:
            bodies = {int(record["custom_id"]): record["response"]["body"] for record in map(json.loads, file)}
    texts = [bodies[i]["choices"][0]["text"] for i in range(len(facts))]
    answers = [text.strip().split("\n")[0].rstrip(".").lower() for text in texts]
    usage = [body["usage"] for body in bodies.values()]
    return {
        "sharing": mode,
        "questions": len(facts),
        "seconds": float(re.search(r"answered in ([\d.]+) s", done.stdout)[1]),
        "prompt_tokens": sum(u["prompt_tokens"] for u in usage) // len(usage),
        "cached_share": sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage) / sum(u["prompt_tokens"] for u in usage),
        "output_tokens": sum(u["completion_tokens"] for u in usage),
        "correct": sum(answer == color for answer, (_, color) in zip(answers, facts)),
        "texts": texts,
        "summary": done.stdout.strip().splitlines(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--coppice", default="build/release/coppice")
    parser.add_argument("--model", help="default: the program's own")
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--none-questions", type=int, default=16, help="questions that the mode none is given")
    parser.add_argument("--first", type=int, default=0, help="begin with this question: a long mode can be run in pieces")
    parser.add_argument("--filler", type=int, default=400, help="sentences without a fact; 400 make a document of about 7,000 tokens for SmolLM2")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--modes", default="tree,one-level,store,none")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="write the result to this file as JSON")
    options = parser.parse_args()

    rng = random.Random(options.seed)
    document, facts = make_document(options.questions, options.filler, rng)
    examples, asked = facts[:EXAMPLES], facts[EXAMPLES:]
    prefix = document + "\n\n" + "".join(f"Question: {question(name)} {color}\n\n" for name, color in examples)

    runs = []
    for repeat in range(options.repeats):
        for mode in options.modes.split(","):
            last = options.first + options.none_questions if mode == "none" else None
            run = run_mode(options, mode, prefix, asked[options.first:last])
            print(f"round {repeat + 1}: {mode} {run['seconds']} s", file=sys.stderr, flush=True)
            runs.append(run)
    print("| sharing | questions | prompt tokens | seconds | seconds a question | cached | correct | texts as in the first run |\n|---|---|---|---|---|---|---|---|")
    for run in runs:
        same = sum(map(str.__eq__, run["texts"], runs[0]["texts"]))
        print(f"| {run['sharing']} | {run['questions']} | {run['prompt_tokens']} | {run['seconds']:.1f} | {run['seconds'] / run['questions']:.3f} | "
              f"{run['cached_share']:.1%} | {run['correct']} | {same} |")
    if options.out:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            cpu = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"cpu": cpu, "cores": os.cpu_count(), "max_tokens": options.max_tokens, "seed": options.seed, "runs": [{k: v for k, v in run.items() if k != "texts"} for run in runs]}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
