"""Output that follows a JSON schema satisfies it: random schemas, random logits over a vocabulary of bytes and some longer tokens, and an
independent validator (PyPI's jsonschema). The other way around, values that satisfy a schema are let through. Skipped without jsonschema."""

import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "build", "python-packages"))
try:
    import jsonschema
    import rfc3339_validator  # noqa: F401  one of the packages that the checks of formats need
except ImportError:
    print("skipped: there is no jsonschema package with its formats; scripts/test installs tests/server/requirements.txt")
    sys.exit(77)

from random_schemas import Generator  # noqa: E402

SAMPLER = os.environ.get("SAMPLE_SCHEMAS", os.path.join(ROOT, "build", "dev", "tests", "grammar", "sample_schemas"))
SCHEMAS = int(os.environ.get("COPPICE_TEST_SCHEMAS", "10000"))
SEED = int(os.environ.get("COPPICE_TEST_SEED", "1"))
SAMPLES, MAX_TOKENS = 4, 150


class Sampler:
    """The program, a line in and a line out."""

    def __init__(self):
        self.process = subprocess.Popen([SAMPLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, schema, seed=1, samples=0, accept=()):
        asked = {"schema": schema if isinstance(schema, str) else json.dumps(schema), "seed": seed, "samples": samples, "max_tokens": MAX_TOKENS}
        self.process.stdin.write(json.dumps(asked | {"accept": list(accept)}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the sampler ended at {asked['schema']}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def validator_of(schema):
    # Tuples of old drafts are lists in `items`.
    old = "draft-07" in json.dumps(schema)
    kind = jsonschema.Draft7Validator if old else jsonschema.Draft202012Validator
    return kind(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def written(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def has_members_in_order(schema, value):
    """Members that `properties` lists come first, in its order, where the schema is a list of members and nothing else decides."""
    if not isinstance(value, dict) or not isinstance(schema, dict) or set(schema) & {"allOf", "anyOf", "oneOf", "$ref", "enum", "const", "if"}:
        return True
    listed = list(schema.get("properties", {}))
    places = [listed.index(name) if name in listed else len(listed) for name in value]
    return places == sorted(places) and all(has_members_in_order(member, value.get(name)) for name, member in schema.get("properties", {}).items())


class JsonSchemaTest(unittest.TestCase):
    def setUp(self):
        self.sampler = Sampler()
        self.addCleanup(self.sampler.close)

    def test_samples_satisfy_their_schema(self):
        counts = {"ended": 0, "refused": 0, "cut": 0}
        for seed in range(SEED, SEED + SCHEMAS):
            schema = Generator(seed).document()
            answer = self.sampler(schema, seed=seed, samples=SAMPLES)
            if "error" in answer:
                counts["refused"] += 1
                self.assertRegex(answer["error"], "^the JSON schema cannot be used: ", f"seed {seed}: {json.dumps(schema)}")
                continue
            validator = validator_of(schema)
            for bytes_in_hex, ended in answer["samples"]:
                if not ended:
                    counts["cut"] += 1
                    continue
                counts["ended"] += 1
                text = bytes.fromhex(bytes_in_hex)
                where = f"seed {seed}, schema {json.dumps(schema)}, text {text}"
                try:
                    value = json.loads(text.decode("utf-8"))
                except ValueError as error:
                    self.fail(f"{error}: {where}")
                json.dumps(value, ensure_ascii=False).encode("utf-8")  # no half surrogate pairs
                for error in validator.iter_errors(value):
                    self.fail(f"{error.message}: {where}")
                self.assertTrue(has_members_in_order(schema, value), where)
        print(counts, file=sys.stderr)
        self.assertGreater(counts["ended"], SCHEMAS)
        self.assertLess(counts["refused"], 0.4 * SCHEMAS)

    def test_values_of_a_schema_are_let_through_and_no_others(self):
        counts = {"valid": 0, "invalid": 0, "valid but refused": 0}
        for seed in range(SEED, SEED + SCHEMAS // 5):
            generator = Generator(seed)
            schema = generator.document()
            try:
                values = [generator.instance(schema) for _ in range(6)]
            except (KeyError, AttributeError, RecursionError, IndexError):
                continue
            answer = self.sampler(schema, accept=[written(value) for value in values])
            if "error" in answer:
                continue
            validator = validator_of(schema)
            for value, accepted in zip(values, answer["accepted"]):
                if not validator.is_valid(value):
                    counts["invalid"] += 1
                    self.assertFalse(accepted, f"seed {seed}: {json.dumps(schema)}: {written(value)}")
                elif accepted:
                    counts["valid"] += 1
                else:
                    counts["valid but refused"] += 1
                    if os.environ.get("COPPICE_TEST_SHOW"):
                        print(f"seed {seed}: {json.dumps(schema)}: {written(value)}", file=sys.stderr)
        print(counts, file=sys.stderr)
        self.assertGreater(counts["valid"], 10 * counts["valid but refused"])


if __name__ == "__main__":
    unittest.main()
