"""Random JSON schemas of the supported keywords, and values that satisfy them, written in the order of the schema."""

import random
import string

# Patterns, and texts that match them.
PATTERNS = {
    "^[a-z]{2,5}$": ["ab", "hello"],
    "^say \"[a-z]\"$": ['say "x"'],
    r"^\d{3}-\d{2}$": ["123-45"],
    "foo": ["foo", "a foo b", '"foo\\'],
    r"\S": ["x", " \n.", "é"],
    r"^\s*$": ["", " \t\n"],
    r"^[^\"\\]+$": ["abc", "日本"],
    "^(yes|no)?$": ["", "no"],
    r"^.{1,4}$": ["abcd", "😀😀"],
    r"^[\x00-\x1f]{1,3}$": ["\x01\n\t"],
    "[😀-😂]": ["😁"],
    r"^(?=.*[A-Z])(?=.*\d).{4,8}$": ["Abc1", "1234567Z"],
    r"^(?!no)[a-z]+$": ["yes", "n"],
    r"^a\/b\.c$": ["a/b.c"],
    "^$|^x+$": ["", "xxx"],
    r"^\w+\W$": ["ab!", "_ "],
    r"\\": ["\\", "a\\b"],
}
FORMATS = {
    "date": ["2024-02-29", "1999-12-31"],
    "time": ["23:59:59Z", "00:00:00.5+01:00"],
    "date-time": ["2024-02-29T12:00:00Z"],
    "duration": ["P1Y2M3D", "PT5S", "P2W"],
    "email": ["a.b@example.com"],
    "idn-email": ["a@b"],
    "hostname": ["example.com", "a-b.c1"],
    "idn-hostname": ["example.com"],
    "ipv4": ["127.0.0.1", "255.255.255.255"],
    "ipv6": ["::1", "fe80::1:2", "1:2:3:4:5:6:7:8"],
    "uri": ["https://example.com/a?b=c#d", "urn:isbn:1"],
    "iri": ["https://example.com/"],
    "uri-reference": ["/a/b", "?x", ""],
    "iri-reference": ["a/b"],
    "uri-template": ["http://a/{x}", "{?a,b}"],
    "json-pointer": ["/a/0/~1", ""],
    "relative-json-pointer": ["0/a", "1#"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
}
CHARACTERS = list("abz 0/\"\\\n\t\x01é日") + ["😀", "\U0010ffff"]


class Generator:
    """One random schema at a time; `instance` makes a value of the last one where it can."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}
        self.old = False  # draft 7, where lists of items have other names

    def chance(self, probability):
        return self.random.random() < probability

    def document(self):
        self.definitions = {}
        self.old = self.chance(0.1)
        schema = self.schema(self.random.choice([1, 2, 2, 3]))
        if self.old or self.chance(0.1):
            schema["$schema"] = "http://json-schema.org/draft-07/schema#" if self.old else "https://json-schema.org/draft/2020-12/schema"
        if self.definitions:
            schema["$defs"] = self.definitions
        return schema

    # ------------------------------------------------------------------------------------------------------------ schemas

    def schema(self, depth):
        """A schema with what stands beside it."""
        schema = self.plain(depth)
        if self.chance(0.15):
            self.add_applicator(schema, depth)
        if self.chance(0.05):
            schema[self.random.choice(["title", "description", "$comment", "x-of-ours"])] = "text"
        if self.chance(0.03):
            schema["uniqueItems"] = False
        return schema

    def plain(self, depth):
        kinds = ["null", "boolean", "integer", "number", "string", "string", "enum", "const"]
        if depth > 0:
            kinds += ["array", "tuple", "object", "object", "object", "union", "map", "several", "any", "ref", "nullable", "discriminated"]
        return getattr(self, "make_" + self.random.choice(kinds))(depth)

    def make_null(self, _):
        return {"type": "null"}

    def make_boolean(self, _):
        return {"type": "boolean"}

    def make_integer(self, _):
        schema = {"type": "integer"}
        low = self.random.choice([-1000, -7, -1, 0, 1, 5, 99, 10**12, -2.5])
        if self.chance(0.5):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.5):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.choice([0, 1, 3, 50, 12345, 10**9, 0.5])
        if self.chance(0.2):
            schema["multipleOf"] = self.random.choice([1, 2, 3, 7, 10, 25, 100, 0.5, 1.5])
        if self.chance(0.05):
            schema["format"] = self.random.choice(["int32", "int64", "uint8"])
        return schema

    def make_number(self, _):
        schema = {"type": "number"}
        low = self.random.choice([-1000.5, -0.25, 0, 0.001, 1, 3.14159, 99, 1e6, -1e-3])
        if self.chance(0.5):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.5):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.choice([0, 0.01, 1, 2.5, 1000])
        if self.chance(0.1):
            schema["multipleOf"] = self.random.choice([1, 5])
        return schema

    def make_string(self, _):
        schema = {"type": "string"}
        if self.chance(0.4):
            schema["minLength"] = self.random.choice([0, 1, 1, 2, 5, 10, 10, 40, 70])
        if self.chance(0.5):
            schema["maxLength"] = schema.get("minLength", 0) + self.random.choice([0, 1, 2, 3, 7, 20, 40, 60, 500, 100000])
        if self.chance(0.25):
            schema["pattern"] = self.random.choice(list(PATTERNS))
        elif self.chance(0.25):
            schema["format"] = self.random.choice(list(FORMATS))
        return schema

    def value(self, depth=1):
        kinds = [None, True, 0, 1, -3.5, 1.0, "a", "\"\\\n", "日", "", 10**6]
        if depth > 0 and self.chance(0.3):
            if self.chance(0.5):
                return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
            return {self.random.choice("zyxa\""): self.value(depth - 1) for _ in range(self.random.randrange(3))}
        return self.random.choice(kinds)

    def make_enum(self, _):
        schema = {"enum": [self.value() for _ in range(self.random.randrange(1, 5))]}
        if self.chance(0.3):
            schema["type"] = self.random.choice(["string", "integer", ["string", "null"], "object"])
        if self.chance(0.1):
            schema["maxLength"] = 1
        return schema

    def make_const(self, _):
        return {"const": self.value()}

    def make_array(self, depth):
        schema = {"type": "array"}
        if self.chance(0.8):
            schema["items"] = self.schema(depth - 1)
        if self.chance(0.4):
            schema["minItems"] = self.random.randrange(4)
        if self.chance(0.6):
            schema["maxItems"] = schema.get("minItems", 0) + self.random.choice([0, 1, 2, 3, 300])
        return schema

    def make_tuple(self, depth):
        prefix = [self.schema(depth - 1) for _ in range(self.random.randrange(1, 4))]
        schema = {"type": "array", "items" if self.old else "prefixItems": prefix}
        if self.chance(0.5):
            schema["additionalItems" if self.old else "items"] = self.random.choice([False, True, self.schema(0)])
        if self.chance(0.5):
            schema["minItems"] = self.random.randrange(len(prefix) + 2)
        if self.chance(0.3):
            schema["maxItems"] = schema.get("minItems", 0) + self.random.randrange(3)
        return schema

    def name(self):
        return self.random.choice(["kind", "name", "a", "b", "\"q\\", "é", "", "zeta", "alpha", "x-1", "tab\t"])

    def make_object(self, depth):
        names = list(dict.fromkeys(self.name() for _ in range(self.random.randrange(5))))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        schema["required"] = [name for name in names if self.chance(0.6)]
        if self.chance(0.15):
            schema["required"].append(self.name())
            schema["required"] = list(dict.fromkeys(schema["required"]))
        if self.chance(0.5):
            schema["additionalProperties"] = False
        elif self.chance(0.3):
            schema["additionalProperties"] = self.random.choice([True, self.schema(0)])
        if self.chance(0.15):
            schema["patternProperties"] = {self.random.choice(["^x-", "a", r"^\w+$"]): self.schema(0) for _ in range(self.random.randrange(1, 3))}
        if self.chance(0.1):
            schema["propertyNames"] = self.random.choice([{"maxLength": 4}, {"pattern": "^[a-z]*$"}, {"enum": ["a", "b", "kind"]}])
        if self.chance(0.15):
            schema["minProperties"] = self.random.randrange(4)
        if self.chance(0.15):
            schema["maxProperties"] = self.random.randrange(5)
        if names and self.chance(0.15):
            schema["dependentRequired"] = {self.random.choice(names): [self.random.choice(names)]}
        if names and self.chance(0.05):
            schema["dependentSchemas"] = {self.random.choice(names): {"required": [self.random.choice(names)]}}
        return schema

    def make_map(self, depth):
        schema = {"type": "object", "additionalProperties": self.schema(depth - 1)}
        if self.chance(0.3):
            schema["minProperties"] = 1
        if self.chance(0.3):
            schema["maxProperties"] = self.random.randrange(1, 4)
        if self.chance(0.3):
            schema["propertyNames"] = self.random.choice([{"minLength": 2, "maxLength": 6}, {"pattern": "^[a-z]+$"}, {"format": "date"}])
        return schema

    def make_any(self, _):
        return self.random.choice([{}, {"type": "object"}, {"type": "array"}])

    def make_several(self, depth):
        return {"type": self.random.sample(["null", "boolean", "integer", "string", "number"], 2)} | ({"maxLength": 3} if self.chance(0.5) else {})

    def make_nullable(self, depth):
        return {"anyOf": [self.schema(depth - 1), {"type": "null"}]}

    def make_union(self, depth):
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.random.randrange(1, 4))]}

    def make_discriminated(self, depth):
        def of(kind):
            schema = self.make_object(depth)
            schema["properties"] = {"kind": {"const": kind}} | {name: value for name, value in schema["properties"].items() if name != "kind"}
            schema["required"] = list(dict.fromkeys(["kind"] + schema["required"]))
            return schema

        return {"oneOf": [of(kind) for kind in self.random.sample(["cat", "dog", "fish", 1], self.random.randrange(1, 4))]}

    def make_ref(self, depth):
        name = self.random.choice("ABC")
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name].update(self.schema(depth - 1))
        schema = {"$ref": "#/$defs/" + name}
        if self.chance(0.2):
            schema.update(self.random.choice([{"maximum": 2}, {"maxLength": 2}, {"minProperties": 1}, {"required": ["a"]}]))
        return schema

    def add_applicator(self, schema, depth):
        """Something more that the value is to satisfy."""
        inner = max(depth - 1, 0)
        choice = self.random.randrange(8)
        if choice == 0:
            schema["allOf"] = [self.random.choice([{"minLength": 2}, {"required": ["a"]}, {"minimum": 1}, self.schema(inner)])]
        elif choice == 1:
            schema["anyOf"] = [{"required": ["a"]}, {"required": ["b"]}] if self.chance(0.5) else [self.schema(inner), self.schema(inner)]
        elif choice == 2:
            schema["not"] = self.random.choice([{"type": "null"}, {"const": "a"}, {"required": ["a"]}, {"enum": ["", "a", 1]}, {"pattern": "b"}])
        elif choice == 3:
            schema["oneOf"] = [{"required": ["a"]}, {"required": ["b"]}] if self.chance(0.5) else [{"type": "string"}, {"maximum": 5}]
        elif choice == 4:
            schema["if"] = {"properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
            schema["then"] = {"required": ["a"]}
            if self.chance(0.5):
                schema["else"] = {"required": ["b"]}
        elif choice == 5:
            schema["allOf"] = [{"properties": {"a": self.schema(inner)}}, {"properties": {"b": self.schema(0)}}]
        elif choice == 6:
            schema["const"] = self.value()
        else:
            schema["dependencies"] = {"a": ["b"]}

    # ------------------------------------------------------------------------------------------------------------ values

    def instance(self, schema):
        """A value that perhaps satisfies the schema, with its members in the schema's order; None is a value too."""
        if not isinstance(schema, dict):
            return self.value()
        if "$ref" in schema:
            return self.instance(self.definitions[schema["$ref"].rsplit("/", 1)[1]])
        for key in ("enum", "anyOf", "oneOf", "const"):
            if key in schema:
                chosen = schema[key] if key == "const" else self.random.choice(schema[key])
                return chosen if key in ("enum", "const") else self.instance(chosen)
        kind = schema.get("type")
        kind = self.random.choice(kind) if isinstance(kind, list) else kind
        return getattr(self, "instance_" + kind)(schema) if kind else self.value()

    def instance_null(self, _):
        return None

    def instance_boolean(self, _):
        return self.chance(0.5)

    def instance_integer(self, schema):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -100))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 100))
        number = self.random.randint(int(low) - 1, max(int(low), int(high)) + 1)
        step = schema.get("multipleOf", 1)
        return int(number // step * step)

    def instance_number(self, schema):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -100))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 100))
        return self.random.choice([low, high, round(low + (high - low) * self.random.random(), 4), int(low)])

    def instance_string(self, schema):
        if "pattern" in schema:
            return self.random.choice(PATTERNS[schema["pattern"]])
        if "format" in schema:
            return self.random.choice(FORMATS[schema["format"]])
        length = schema.get("minLength", 0) + self.random.choice([0, 1, 2, 5])
        return "".join(self.random.choice(CHARACTERS) for _ in range(min(length, schema.get("maxLength", length))))

    def instance_array(self, schema):
        prefix = schema.get("prefixItems", schema["items"] if isinstance(schema.get("items"), list) else [])
        others = schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items", {})
        least = schema.get("minItems", 0)
        count = min(self.random.randint(least, least + 3), schema.get("maxItems", least + 3))
        return [self.instance(prefix[i] if i < len(prefix) else others) for i in range(count)]

    def instance_object(self, schema):
        members = {}
        for name, member in schema.get("properties", {}).items():
            if name in schema.get("required", []) or self.chance(0.5):
                members[name] = self.instance(member)
        for name in schema.get("required", []):
            if name not in members:
                members[name] = self.instance(schema.get("additionalProperties", {}))
        if self.chance(0.3) and name_free(schema):
            members["".join(self.random.choice(string.ascii_lowercase) for _ in range(3))] = self.instance(schema.get("additionalProperties", {}))
        return members


def name_free(schema):
    """Whether members of other names are written (docs/server.md): where the schema speaks of them, or has no list."""
    return "additionalProperties" in schema or "properties" not in schema
