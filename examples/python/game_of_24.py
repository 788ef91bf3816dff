"""The Game of 24 for searches over a tree of thoughts: four numbers, an operation a line, 24 at the end.

A grammar lets only legal arithmetic come, so that a search chooses among legal lines and the model says how likely each is.
"""

from fractions import Fraction

PROMPT = """Make 24 of four numbers, two at a time.

Numbers: 2 3 5 12
12 / 2 = 6
5 * 6 = 30
30 - 3 = 27
Reach: 27

Numbers: 4 9 10 13
13 - 10 = 3
9 - 3 = 6
4 * 6 = 24
Reach: 24

Numbers: {}
"""


def moves(numbers):
    """Each line that may be said of the numbers -> the numbers behind it; whole and not negative, as one would write them."""
    lines = {}
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            if i == j:
                continue
            rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
            results = {"-": a - b, "/": Fraction(a, b) if b else Fraction(1, 2)}
            if i < j:
                results |= {"+": a + b, "*": a * b}
            for sign, result in results.items():
                if result >= 0 and result == int(result):
                    lines[f"{a} {sign} {b} = {int(result)}"] = tuple(sorted([*rest, int(result)]))
    return lines


def grammar(numbers):
    """EBNF of all ways down to one number: a rule for the numbers that are left, each line before the rule of what it leaves."""
    rules, todo = {}, [tuple(sorted(numbers))]
    while todo:
        state = todo.pop()
        name = "n" + "-".join(map(str, state))
        if name in rules:
            continue
        following = moves(state) if len(state) > 1 else {}
        todo += following.values()
        ways = [f'"{line}\\n" n{"-".join(map(str, left))}' for line, left in following.items()]
        rules[name] = " | ".join(ways) if len(state) > 1 else f'"Reach: {state[0]}\\n"'
    first = "n" + "-".join(map(str, sorted(numbers)))
    return "\n".join([f"root ::= {first}", *(f"{name} ::= {rule}" for name, rule in rules.items())])


def reached(text):
    """The number that a complete solution ends with; None: it is not complete."""
    lines = text.strip().splitlines()
    return int(lines[-1].removeprefix("Reach: ")) if lines and lines[-1].startswith("Reach: ") else None
