"""Prose of Markdown pages and of comments: the words of a sentence, and words that have a common one in the field.

For scripts/check_docs; it prints nothing and writes nothing. A sentence ends at a full stop, question mark or exclamation mark
before a capital, a digit or code, and at the end of its paragraph or list item. Code, tables, headings, HTML comments, images
and the targets of links are no prose of a sentence; a code span counts as one word.
"""

import bisect
import re

import pages

MEAN_WORDS = 20  # of the sentences of an explaining page

END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[(\"'*_]*[A-Z0-9\[])")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|Fig|Eq)\.")

# (pattern, the field's word). A space of a pattern is any white space. Words are found in any case and form that the pattern
# spells, and inside identifiers too where sources are read: TeamTask and team_rows have the word `team`.
RETIRED = (
    # Attention
    (r"teams?", "a cooperative (CTA-wide) stream task, split-KV within a CTA"),
    (r"side (?:tiles?|tasks?|streams?|warps?|warpgroups?|work)", "the overlapped decode warpgroup, its tile or its task"),
    (r"(?:decod\w+|runs?|reads?) beside (?:a |the )?(?:prompts?|prefill|dense)", "overlapped with, co-located decode"),
    (r"SMs (?:are |is )?divided|divided SMs|divi(?:sions? of|des?|ding) (?:the |its )?SMs|SM divisions?", "an SM partition"),
    (r"owners? of (?:a |an |the |its |this |each )?(?:ranges?|items?|cuts?|tiles?|reads?)", "a range, `RangeId`"),
    (r"(?:range|item|cut)'s owner", "a range, `RangeId`"),
    (r"(?<!memory )(?<!cache )(?<!register )pressure", "the coarsening level"),
    (r"grain", "the target task time"),
    (r"absorb(?:s|ed|ing)?", "read per child, not shared"),
    (r"judg(?:es?|ed|ing)", "to compare steps, to evaluate"),
    (r"pays?|paid(?! for)", "saves time, gains"),
    (r"surely", "decided by sums, certainly"),
    (r"wide (?:items?|rows?)", "a two-column tile (9 to 16 rows)"),
    (r"(?:longest|draft|n-gram) chains?|chains? (?:of drafts|below)", "the critical path, an only-child run, a linear draft"),
    (r"lanes? of (?:a |the )?(?:drafter|drafts?)", "a draft branch"),
    (r"heads put together|puts? heads together", "heads per task"),
    (r"held states?", "an in-shared-memory merge"),
    (r"early look", "the ticket prefetch"),
    (r"heirs?", "the remaining child"),
    # Engine and server
    (r"(?:un)?told|tells?", "acknowledged, notified, pending; says, reports"),
    (
        r"(?:waits?|waiting|stands?|leaves?|joins?|put|place|room|first|last|head|longe?r?) (?:in|of|for) (?:the |a )?line(?! of)",
        "a queue",
    ),
    (r"waiting lines?|(?:the|a) line (?:is full|has room|has the order|of requests|waits)|behind in line", "a queue"),
    # Subjects
    (r"who|whoever|whom", "a noun of the code: the caller, the client, the CTA"),
    (r"(?:some|no|every|any)(?:body|one)|no one", "a noun of the code: no caller, each thread"),
    # Two negations
    (
        r"(?:not|never|nothing|none) (?:not|without|unless|unlike\w*|unknown|unused|untouched|unread)|no \w+ unless|not in no",
        "one statement without a negation",
    ),
)
STORIES = {  # words of texts that models read, by file
    "bench/document_questions.py": ("told",),
    "bench/peers/tokenizers_pypi.py": ("who",),
    "bench/traces/record": ("who", "tell", "somebody"),
    "examples/prompts/coppice.txt": ("who", "whom", "tell", "pay", "paid", "grain"),
    "src/cli/bench/bench_draft.cc": ("nobody",),
    "src/cli/eval/needle.cc": ("nobody", "somebody"),
    "tests/cli/chat_test.py": ("tell",),
    "tests/server/page_test.py": ("tell",),
}
PATTERNS = tuple((re.compile(rf"(?<![\w-])(?:{pattern})(?!\w)", re.IGNORECASE), word) for pattern, word in RETIRED)


def of_block(text):
    """The prose of a block: each code span one word, links by their text. Line breaks stay, so offsets give lines."""
    text = re.sub(r"<!--.*?-->", lambda comment: "\n" * comment.group(0).count("\n"), text, flags=re.DOTALL)
    text = pages.CODE.sub(lambda span: "Code" + "\n" * span.group(0).count("\n"), text)
    text = re.sub(r"!\[[^\]]*\]\([^()]*\)", "", text)
    text = pages.LINK.sub(lambda link: re.sub(r"^\[([^\]]*)\]\(.*", r"\1", link.group(0), flags=re.DOTALL), text)
    return ABBREVIATION.sub(lambda found: found.group(0).replace(".", " "), text)


def sentences(page):
    """(line, number of words, sentence) of each sentence of a page's paragraphs and list items."""
    for block in page.blocks:
        formula = all(line.startswith("    ") and not pages.ITEM.match(line) for line in block.text.split("\n"))
        if block.kind != "text" or formula:
            continue
        text = pages.ITEM.sub(lambda mark: " " * len(mark.group(0)), of_block(block.text), count=1)
        start = 0
        for end in [found.end() for found in END.finditer(text)] + [len(text)]:
            sentence = text[start:end]
            words = sum(1 for word in sentence.split() if re.search(r"\w", word))
            if words:
                yield block.line + text.count("\n", 0, start), words, " ".join(sentence.split())
            start = end


def begins_with_what(sentence):
    """Whether its subject is a clause with "what"; short titles and questions apart."""
    words = sum(1 for word in sentence.split() if re.search(r"\w", word))
    return words > 3 and re.match(r"\W*What(?:ever)?\b", sentence) is not None and not sentence.rstrip().endswith("?")


def what_subjects(page):
    """(line, the sentence's beginning) of a page's sentences that have a clause with "what" as their subject."""
    for line, _, sentence in sentences(page):
        if begins_with_what(sentence):
            yield line, " ".join(sentence.split()[:4])


def comments(path, text):
    """(line, text without marks) of a source's comments, lines of a block together, and of Python's docstrings."""
    mark = "//+" if path.endswith((".h", ".cc", ".cu", ".cuh", ".c", ".js")) else "#+"
    block, begin = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        if whole := re.match(rf"[ \t]*{mark} ?(.*)", line):
            begin = begin if block else number
            block.append(whole.group(1))
            continue
        if block:
            yield begin, "\n".join(block)
            block = []
        if behind := re.search(rf"(?<![:\"'\w]){mark} (.*)", line):  # of this line, and of those below it
            block, begin = [behind.group(1)], number
    if block:
        yield begin, "\n".join(block)
    if mark == "#+":
        for docstring in re.finditer(r'"""(.*?)"""', text, re.DOTALL):
            yield 1 + text.count("\n", 0, docstring.start()), docstring.group(1)


def what_subjects_of_source(path, text):
    """(line, the sentence's beginning) likewise of a source's comments."""
    for line, comment in comments(path, text):
        start = 0
        for end in [found.end() for found in END.finditer(comment)] + [len(comment)]:
            if begins_with_what(comment[start:end]):
                yield line + comment.count("\n", 0, start), " ".join(comment[start:end].split()[:4])
            start = end


def mean_words(page):
    """Words a sentence, in the mean; 0 for a page without sentences."""
    counts = [words for _, words, _ in sentences(page)]
    return sum(counts) / len(counts) if counts else 0.0


def retired(text):
    """(offset, the words as they stand, the field's word) of prose."""
    words, starts, end = [], [], 0  # with one space between any two words, as the patterns have it
    for found in re.finditer(r"\S+", text):
        starts.append((end, found.start()))
        words.append(found.group(0))
        end += len(found.group(0)) + 1
    flat = " ".join(words)
    return [
        (starts[bisect.bisect_right(starts, (found.start(), len(text))) - 1][1], found.group(0), word)
        for pattern, word in PATTERNS
        for found in pattern.finditer(flat)
    ]


def retired_of_page(page):
    """(line, the words, the field's word) of a page's prose, tables and headings."""
    for block in page.blocks:
        if block.kind in ("text", "table"):
            text = of_block(block.text)
            for offset, found, word in retired(text):
                yield block.line + text.count("\n", 0, offset), found, word
    for number, line in enumerate(page.text.split("\n"), 1):
        if heading := pages.HEADING.match(line):
            for _, found, word in retired(of_block(heading.group(2))):
                yield number, found, word


def retired_of_source(text):
    """(line, the words, the field's word) of a source: comments, texts and identifiers, which are read word by word."""
    text = re.sub(r"(?<=\n)([ \t]*)(?://+|#+|\*)", lambda mark: " " * len(mark.group(0)), "\n" + text)[1:]
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text)
    for offset, found, word in retired(text):
        yield 1 + text.count("\n", 0, offset), found, word
