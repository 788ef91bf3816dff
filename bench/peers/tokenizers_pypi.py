#!/usr/bin/env python3
"""Compares Coppice's tokenizers with the PyPI packages tokenizers and sentencepiece: ids, round trips and speed.

  pip install tokenizers sentencepiece
  cmake --build build/dev --target tokenize_texts
  bench/peers/tokenizers_pypi.py build/dev/src/tokenizer/tokenize_texts [--texts 20000] [--keep FOLDER] [--fixtures FOLDER]

Trains a small tokenizer of each kind on a seeded corpus (code, many scripts, emoji, odd spaces; no network), then encodes other texts
of the same generator with both. SentencePiece also gets texts that are no UTF-8. One line per kind: texts with other ids, texts that
decode to something else, megabytes a second of both on one core. --fixtures writes the tokenizers and the ids of some texts, for
src/tokenizer/pypi_test.cc.
"""
import argparse
import functools
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sentencepiece  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

WORDS = ("the of and to in is that it was for on are as with his they at be this have from or one had by word but not what all were we when "
         "your can said there use an each which she do how their if will up other about out many then them these so some her would make "
         "like him into time has look two more write go see number no way could people my than first water been call who oil its now "
         "attention transformer tokenizer encoding prefix kernel language résumé naïve façade straße").split()
CODE = ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n", "if err != nil {\n\t\treturn err\n\t}\n",
        "SELECT * FROM t WHERE a >= 10;\n", "#include <vector>\n", "<div class=\"x\">&nbsp;</div>\n", "x = {'a': [1, 2, 3]}\n", "// TODO(me): fix\n",
        "self._value = None\n", "std::unique_ptr<Foo> p;\n", "\\frac{a}{b} $x_1$\n", "0xDEADBEEF 1e-9 3.14159 1,000,000\n"]
SCRIPTS = ["日本語のテキスト。漢字かな交じり文", "今天天气很好，我们去公园。", "مرحبا بالعالم ١٢٣", "Привет, мир! Как дела?", "한국어 텍스트입니다", "हिन्दी में पाठ", "ภาษาไทย",
           "Ελληνικά γράμματα", "עברית", "Tiếng Việt có dấu", "ქართული", "Հայերեն", "தமிழ்", "ελ ΑΣ ς", "ÀÉÎÕÜ ñ ç ß ø å", "ｆｕｌｌ　ｗｉｄｔｈ ﾊﾝｶｸ ﬁ ﬂ"]
EMOJI = ["🙂", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤️", "🤖🔥", "½", "Ⅳ", "①", "²", "™", "…", "—", "€"]
SPACES = [" ", "  ", "   ", "        ", "\n", "\n\n", "\t", "\t\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\x85", "\u180e", "▁", "▁▁"]
MARKS = ["e\u0301", "n\u0303", "\u0301", "\u0300", "a\u0308\u0301", "I'm", "DON'T", "we'LL", "it’s", "'S", "!!!", "???", "---", "===", "#$%", "<s>", "</s>",
         "<tool>", "[INST]", "<0x41>", "<unk>", "\ufeff", "\x00", "\x07", "\ufffd", "\U0010ffff", "\ue000", "ı", "İ", "ſ"]


def corpus(count, seed):
    """Texts of 0 to some 300 characters, each a mixture of a few kinds of parts."""
    source = random.Random(seed)
    pools = [WORDS] * 4 + [CODE, SCRIPTS, EMOJI, SPACES, MARKS, [str(n) for n in range(0, 5000, 37)]]
    for _ in range(count):
        chosen = source.sample(pools, source.randint(1, 4))
        glue = source.choice([" ", " ", " ", "", "\n"])
        parts = []
        for _ in range(source.randint(0, 30)):
            part = source.choice(source.choice(chosen))
            if source.random() < 0.1:
                part = part[: source.randint(0, len(part))]
            parts.append(part.title() if source.random() < 0.05 else part)
        yield glue.join(parts)


def broken(text, source):
    """The text's bytes with some that are no UTF-8."""
    data = bytearray(text.encode())
    for _ in range(source.randint(1, 4)):
        at = source.randint(0, len(data))
        data[at:at] = bytes(source.choice([[0xFF], [0x80], [0xE2, 0x82], [0xC0, 0x80], [0xED, 0xA0, 0x80], [0xF4, 0x90, 0x80, 0x80], [0xF0, 0x9F]]))
    return bytes(data)


def train_sentencepiece(texts, folder, name, **options):
    prefix = str(folder / name)
    lines = [line for text in texts for line in text.replace("\x00", "").splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=prefix, minloglevel=2, character_coverage=0.995,
                                             hard_vocab_limit=False, num_threads=1, **options)
    return pathlib.Path(prefix + ".model")


SPLIT_GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
               r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
               r"\s*[\r\n]+|\s+(?!\S)|\s+")
SPLIT_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(texts, pre_tokenizer, normalizer, decoder, byte_level, vocab=1500, **options):
    tokenizer = Tokenizer(models.BPE(**{key: value for key, value in options.items() if key in ("unk_token", "fuse_unk", "byte_fallback")}))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    special = options.get("special", ["<s>", "</s>"])
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    if options.get("byte_fallback"):
        special = ["<unk>"] + special + BYTES
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False,
                                  limit_alphabet=options.get("limit_alphabet", 1000))
    tokenizer.train_from_iterator(texts, trainer)
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = [token for token in made["added_tokens"] if not token["content"].startswith("<0x")]
    made["model"]["ignore_merges"] = options.get("ignore_merges", False)
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.add_tokens(options.get("added", []))
    return tokenizer


def field(message, number):
    """The last field of that number in a protocol buffer message that is a string or a message."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 0x80:
                return value, at
    at, found = 0, b""
    while at < len(message):
        tag, at = varint(at)
        if tag & 7 == 0:
            at = varint(at)[1]
        elif tag & 7 == 2:
            size, at = varint(at)
            found = message[at:at + size] if tag >> 3 == number else found
            at += size
        else:
            at += 4 if tag & 7 == 5 else 8
    return found


def make_kinds(texts, folder, vocab=1500, rules=None):
    """(name, path) of every kind; a .model is SentencePiece's, a .json Hugging Face's."""
    spm = {
        "spm-bpe-llama": dict(model_type="bpe", vocab_size=vocab, byte_fallback=True, normalization_rule_name="identity",
                              remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
        "spm-bpe-gemma": dict(model_type="bpe", vocab_size=vocab, byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False,
                              remove_extra_whitespaces=False, split_digits=True, user_defined_symbols=["▁▁", "▁▁▁▁", "\n\n", "<tool>", "\t"]),
        "spm-unigram-t5": dict(model_type="unigram", vocab_size=vocab, user_defined_symbols=["<tool>"]),
        "spm-unigram-bytes": dict(model_type="unigram", vocab_size=vocab, byte_fallback=True, normalization_rule_name="nfkc_cf"),
    }
    for name, options in spm.items():
        if rules and options["model_type"] == "unigram":
            options.pop("normalization_rule_name", None)
            options["normalization_rule_tsv"] = str(rules)
        yield name, train_sentencepiece(texts, folder, name, **options)

    make = functools.partial(bpe, texts, vocab=vocab)
    sequence, split = pre_tokenizers.Sequence, pre_tokenizers.Split
    byte_level, byte_decoder = pre_tokenizers.ByteLevel, decoders.ByteLevel()
    strip = decoders.Sequence(LLAMA_DECODER + [decoders.Strip(" ", 1, 0)])
    added = [AddedToken("<tool>", special=False, normalized=False), AddedToken("[INST]", special=True), AddedToken("<mask>", special=True, lstrip=True),
             AddedToken("people", special=False, single_word=True), AddedToken("€", special=False, lstrip=True, rstrip=True),
             AddedToken("    ", special=False, normalized=False)]
    made = {
        "bytelevel-gpt2": make(byte_level(add_prefix_space=False), None, byte_decoder, True, added=added),
        "bytelevel-prefix": make(byte_level(add_prefix_space=True), None, byte_decoder, True),
        "bytelevel-starcoder": make(sequence([pre_tokenizers.Digits(True), byte_level(add_prefix_space=False)]), None, byte_decoder, True),
        "bytelevel-llama3": make(sequence([split(Regex(SPLIT_LLAMA3), "isolated"), byte_level(add_prefix_space=False, use_regex=False)]), None,
                                byte_decoder, True, ignore_merges=True, added=added),
        "bytelevel-gpt4o": make(sequence([split(Regex(SPLIT_GPT4O), "removed", invert=True), byte_level(add_prefix_space=False, use_regex=False)]),
                               normalizers.NFC(), byte_decoder, True),
        "llama": make(None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), strip, False, unk_token="<unk>",
                     fuse_unk=True, byte_fallback=True, added=added, limit_alphabet=200),
        "llama-metaspace": make(pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None, strip, False, unk_token="<unk>", fuse_unk=True,
                               byte_fallback=True, added=added, limit_alphabet=200),
        "gemma": make(split(" ", "merged_with_previous"), normalizers.Replace(" ", "▁"), decoders.Sequence(LLAMA_DECODER), False, unk_token="<unk>",
                     fuse_unk=True, byte_fallback=True, limit_alphabet=200),
        "bpe-unk": make(pre_tokenizers.Metaspace(), normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
                       decoders.Metaspace(), False, unk_token="<unk>", fuse_unk=False, limit_alphabet=60, special=["<unk>", "<s>"]),
        "bpe-whitespace": make(sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(False)]),
                              normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")]),
                              decoders.Fuse(), False, unk_token="<unk>", fuse_unk=True, limit_alphabet=60, special=["<unk>"]),
        "bpe-bert": make(sequence([pre_tokenizers.BertPreTokenizer(), split(Regex(r"\w+"), "merged_with_next")]), normalizers.Nmt(),
                        decoders.Fuse(), False, unk_token="<unk>", fuse_unk=True, limit_alphabet=300, special=["<unk>"]),
        "bpe-delimiter": make(sequence([pre_tokenizers.CharDelimiterSplit("e"), split("a", "merged_with_previous", invert=True)]), normalizers.NFD(),
                             decoders.Fuse(), False, unk_token="<unk>", fuse_unk=True, limit_alphabet=300, special=["<unk>"]),
    }
    for name, options in {"unigram": {}, "unigram-bytes": {"byte_fallback": True}}.items():
        model = (folder / ("spm-unigram-bytes.model" if options else "spm-unigram-t5.model")).read_bytes()
        spm = sentencepiece.SentencePieceProcessor(model_proto=model)
        vocabulary = [(spm.id_to_piece(i), spm.get_score(i)) for i in range(spm.vocab_size())]
        tokenizer = Tokenizer(models.Unigram(vocabulary, spm.unk_id(), options.get("byte_fallback", False)))
        charsmap = field(field(model, 3), 2)
        steps = [normalizers.Precompiled(charsmap)] if charsmap else []
        tokenizer.normalizer = normalizers.Sequence(steps + [normalizers.Replace(Regex(" {2,}"), " ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if options else "first")
        tokenizer.decoder = strip if options else decoders.Metaspace()
        tokenizer.add_special_tokens(["<s>", "</s>"])
        made[name] = tokenizer
    for name, tokenizer in made.items():
        path = folder / (name + ".json")
        path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        yield name, path


class Peer:
    def __init__(self, path):
        self.is_spm = path.suffix == ".model"
        if self.is_spm:
            self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
            self.unk = {self.model.unk_id()}
        else:
            self.model = Tokenizer.from_file(str(path))
            self.unk = {self.model.token_to_id("<unk>")}
        self.hidden = set()
        if not self.is_spm:
            self.hidden = {index for index, token in self.model.get_added_tokens_decoder().items() if token.special}

    def encode(self, texts):
        if self.is_spm:
            return self.model.encode(texts)
        return [encoding.ids for encoding in self.model.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids):
        return self.model.decode(ids)


def run(binary, path, texts, repetitions):
    with tempfile.NamedTemporaryFile() as file:
        for text in texts:
            data = text if isinstance(text, bytes) else text.encode()
            file.write(struct.pack("<I", len(data)) + data)
        file.flush()
        done = subprocess.run([binary, path, file.name, str(repetitions)], capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode())
    out, at, results = done.stdout, 0, []
    while at < len(out):
        count, = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from(f"<{count}i", out, at + 4))
        at += 4 + 4 * count
        size, = struct.unpack_from("<I", out, at)
        results.append((ids, out[at + 4:at + 4 + size].decode()))
        at += 4 + size
    return results, float(done.stderr)


# Some of NFKC: a whole map would be larger than the tokenizers.
RULES = [("ﬁ", "fi"), ("①", "1"), ("²", "2"), ("Ⅳ", "IV"), ("…", "..."), ("ｆ", "f"), ("ｕ", "u"), ("ｌ", "l"), ("e\u0301", "é"), ("\u3000", " "), ("\u00a0", " "),
         ("\t", " "), ("\n", " "), ("\u200b", ""), ("™", "TM"), ("한", "\u1112\u1161\u11ab")]
FIXTURES = ["spm-bpe-llama", "spm-bpe-gemma", "spm-unigram-t5", "spm-unigram-bytes", "bytelevel-prefix", "bytelevel-llama3", "llama", "llama-metaspace", "gemma",
            "bpe-unk", "bpe-whitespace", "bpe-bert", "unigram", "unigram-bytes"]


def write_fixtures(folder):
    rules = folder / "rules.tsv"
    rules.write_text("".join("\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) + "\n" for rule in RULES))
    texts = list(corpus(60, 4))
    expected = {"texts": texts, "kinds": {}}
    for name, path in make_kinds(list(corpus(800, 1)), folder, 600, rules):
        (folder / (name + ".vocab")).unlink(missing_ok=True)
        if name not in FIXTURES:
            path.unlink()
            continue
        peer = Peer(path)
        ids = peer.encode(texts)
        decoded = [None if peer.unk & set(one) else peer.decode(one) for one in ids]
        expected["kinds"][path.name] = {"ids": ids, "decoded": [None if text and "\ufffd" in text else text for text in decoded]}
    rules.unlink()
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--keep")
    parser.add_argument("--fixtures")
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    if options.fixtures:
        return write_fixtures(pathlib.Path(options.fixtures))
    folder = pathlib.Path(options.keep or tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    training, texts = list(corpus(4000, 1)), list(corpus(options.texts, 2))
    source = random.Random(3)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts)} texts, {megabytes:.2f} MB\n{'kind':22} other ids  other text   MB/s  peer MB/s")
    total = 0
    for name, path in make_kinds(training, folder):
        peer = Peer(path)
        seconds = 1e9
        for _ in range(options.repetitions):
            begin = time.perf_counter()
            expected = peer.encode(texts)
            seconds = min(seconds, time.perf_counter() - begin)
        ours, our_seconds = run(options.binary, path, texts, options.repetitions)
        other_ids = [i for i, (ids, _) in enumerate(ours) if ids != expected[i]]
        # A peer prints unk and, for bytes that are no UTF-8, other numbers of U+FFFD.
        comparable = [i for i in range(len(texts)) if not peer.unk & set(expected[i])]
        other_text = [i for i in comparable if ours[i][1] != peer.decode(expected[i]) and "\ufffd" not in ours[i][1]]
        if peer.is_spm:
            bad = [broken(text, source) for text in texts[:2000]]
            decoded = [ids for ids, _ in run(options.binary, path, bad, 1)[0]]
            other_ids += [len(texts) + i for i, text in enumerate(bad) if peer.model.encode(text) != decoded[i]]
        total += len(other_ids) + len(other_text)
        print(f"{name:22} {len(other_ids):9} {len(other_text):11} {megabytes / our_seconds:6.1f} {megabytes / seconds:10.1f}", flush=True)
        for i in [i for i in other_ids if i < len(texts)][: options.show]:
            print(f"   {texts[i]!r}\n   ours {ours[i][0]}\n   peer {expected[i]}")
        for i in other_text[: options.show]:
            print(f"   {texts[i]!r}\n   ours {ours[i][1]!r}\n   peer {peer.decode(expected[i])!r}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
