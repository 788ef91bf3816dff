#!/usr/bin/env python3
"""Makes files for `coppice eval` of the data sets of the papers' accuracy tables, which are not part of this repository.

  questions.py mmlu FOLDER [--shots 5] [--of-each 2]   FOLDER has dev/SUBJECT_dev.csv and test/SUBJECT_test.csv (Hendrycks et al. 2021):
                                                       lines for `coppice eval choice` (RelayAttention, table 3)
  questions.py gsm8k FILE [--of 16] [--shots 8] --examples FILE
                                                       FILE is test.jsonl of grade-school-math (Cobbe et al. 2021), the examples are
                                                       its train.jsonl: lines for `coppice eval vote` (Hydragen, table 1)

What is taken lies evenly in each file.
"""

import argparse
import csv
import json
import pathlib
import re

LETTERS = "ABCD"


def evenly(items, count):
    return [items[i * len(items) // count] for i in range(min(count, len(items)))]


def mmlu_rows(path):
    """Question, four choices, the letter of the answer."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def mmlu_text(row):
    return "\n".join([row[0].strip(), *(f"{letter}. {choice}" for letter, choice in zip(LETTERS, row[1:5])), "Answer:"])


def mmlu(args):
    folder = pathlib.Path(args.path)
    for path in sorted(folder.glob("test/*_test.csv")):
        subject = path.name.removesuffix("_test.csv")
        examples = mmlu_rows(folder / "dev" / f"{subject}_dev.csv")[: args.shots]
        head = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
        head += "".join(f"{mmlu_text(row)} {row[5]}\n\n" for row in examples)
        for row in evenly(mmlu_rows(path), args.of_each):
            yield {"question": head + mmlu_text(row), "choices": [f" {letter}" for letter in LETTERS], "answer": LETTERS.index(row[5])}


def gsm8k_rows(path):
    """Question, solution without the calculator's notes, answer."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            solution, answer = row["answer"].split("####")
            yield row["question"].strip(), re.sub(r"<<.*?>>", "", solution).strip().replace("\n", " "), answer.strip()


def gsm8k(args):
    examples = [f"Q: {question}\nA: {solution} The answer is {answer}.\n\n" for question, solution, answer in evenly(list(gsm8k_rows(args.examples)), args.shots)]
    for question, _, answer in evenly(list(gsm8k_rows(args.path)), args.of):
        yield {"prompt": f"{''.join(examples)}Q: {question}\nA:", "answer": answer, "stop": ["\nQ:", "\n\n"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("mmlu")
    command.add_argument("path")
    command.add_argument("--shots", type=int, default=5)
    command.add_argument("--of-each", type=int, default=2)
    command.set_defaults(make=mmlu)
    command = commands.add_parser("gsm8k")
    command.add_argument("path")
    command.add_argument("--examples", required=True)
    command.add_argument("--shots", type=int, default=8)
    command.add_argument("--of", type=int, default=16)
    command.set_defaults(make=gsm8k)
    args = parser.parse_args()
    for line in args.make(args):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
