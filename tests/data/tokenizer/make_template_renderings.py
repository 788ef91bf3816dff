#!/usr/bin/env python3
"""Makes template_renderings.json: what jinja2 (PyPI), set up as in Hugging Face transformers, makes of the chat templates in
templates/. Those are the templates that the models' authors publish with their tokenizers, each under its model's licence.

  make_template_renderings.py
"""
import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from template_features import FEATURES

HERE = pathlib.Path(__file__).parent
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather \"now\" in a city, as <b>text</b> & numbers: 20 °C",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "A city's name"}, "days": {"type": "integer", "enum": [1, 2, 3]},
        "units": {"type": ["string", "integer"], "enum": ["c", "f"]}},
        "required": ["city"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "places": ["a", "b"]}}}


def user(text): return {"role": "user", "content": text}
def assistant(text, **more): return {"role": "assistant", "content": text, **more}
def system(text): return {"role": "system", "content": text}


TURNS = [user("Hello, who are you?"), assistant("  A model.\n"), user(" Zwei\nZeilen, \"quotes\" & <tags> 🙂 ")]
CALLED = [user("Weather?"), assistant("", tool_calls=[CALL]),
          {"role": "tool", "name": "get_weather", "tool_call_id": "a1B2c3D4e", "content": "{\"temperature\": 20.5}"}]
CONVERSATIONS = {
    "one": [user("Hello")],
    "system": [system("You are terse."), user("Hello")],
    "turns": TURNS,
    "system and turns": [system(" Be kind.\n\n"), *TURNS],
    "answered": TURNS + [assistant("<think>\nhm\n</think>\n\nGood.")],
    "thought": [user("1+1?"), assistant("<think>\ntwo\n</think>\n\n2"), user("2+2?")],
    "two users": [user("a"), user("b")],
    "tool": CALLED,
    "tool, answered": [system("Use tools."), *CALLED, assistant("20.5 degrees."), user("Thanks")],
    "two results": [*CALLED[:2], CALLED[2], {**CALLED[2], "content": "rain"}],
    "two calls": [user("?"), assistant("I look.", tool_calls=[CALL, {**CALL, "id": "z9Z9z9Z9z"}])],
    "no content": [user("?"), assistant(None, tool_calls=[CALL])],
    "unknown role": [{"role": "narrator", "content": "Once"}, user("Go on")],
    "empty": [user("")],
}
# Templates that ask for the date are given one.
DATE = {"date_string": "02 Jan 2026"}
VARIABLES = {"plain": DATE, "tools": {"tools": [WEATHER, CLOCK], **DATE}, "no thinking": {"enable_thinking": False, **DATE}}


# Constructs that no published template has, or none of those above: macros, loop controls, arguments of tojson.
OWN = [
    "{% macro f(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}{{ f(1) ~ f(2) | upper }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{{ y }}{% endmacro %}{{ f() }}{% set x = 2 %}{{ f() }}{% set y = 3 %}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}{% macro g(x) %}{{ h(x) }}{% endmacro %}"
    "{% macro h(x) %}<{{ x }}>{% endmacro %}{{ g('a') }}",
    "{% for i in [1, 2] %}{% set x = i %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% macro f(x) %}{% set x = x ~ '!' %}{% set z = 1 %}{{ x }}{% endmacro %}{% set x = 'o' %}{{ f('a') }}{{ x }}{{ z is defined }}",
    "{% macro render(messages) -%}\n  {%- for m in messages %}\n    {{- m.role }}:\n    {%- if m.role == 'user' %} {{ m.content }}{% endif %};\n"
    "  {%- endfor %}\n{%- endmacro %}\n{{ render(messages) }}|{{ render(messages[:1]) }}|{{ render is defined }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
    "{% macro f(a=1, b) %}{% endmacro %}", "{% macro f(a %}{% endmacro %}", "{% macro f() %}", "{% endmacro %}", "{{ f() }}{% macro f() %}{% endmacro %}",
    "{% if false %}{% macro f() %}{% endmacro %}{% endif %}{{ f() }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{{ loop.last }}{% else %}none{% endfor %}.",
    "{% for i in [1, 2] %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}after{% endfor %}",
    "{% for i in [1, 2, 3] %}{% set t %}a{% if i == 2 %}{% continue %}{% endif %}b{% endset %}{{ t }}{% endfor %}",
    "{% break %}", "{% if true %}{% continue %}{% endif %}",
    "{% generation %}x{% set a = 1 %}{{ a }}{% endgeneration %}{{ a }}", "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
    "{{ {'b': [1, {'z': 1, 'a': 2}], 'a': 'é'} | tojson(separators=(',', ':'), sort_keys=true) }}{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2, "
    "sort_keys=true) }}{{ [1, 2] | tojson(indent=1, separators=(' ;', '=')) }}{{ [1, {'a': 2}] | tojson(indent=none) }}",
]


class Generation(Extension):
    """{% generation %}, as transformers has it: only marks what the model wrote."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller): return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def rendering(template, messages, variables, add_generation_prompt):
    try:
        given = {"tools": None, "documents": None, **variables}
        return {"text": template.render(messages=messages, add_generation_prompt=add_generation_prompt, bos_token="<s>", eos_token="</s>", **given)}
    except Exception as error:  # whatever it raises, this project must fail too
        return {"error": str(error)}


def main():
    jinja, cases = environment(), []
    for source in OWN + FEATURES:
        for conversation in ("one", "turns") if "messages" in source else ("one",):
            try:
                made = rendering(jinja.from_string(source), CONVERSATIONS[conversation], DATE, True)
            except (jinja2.exceptions.TemplateSyntaxError, SyntaxError) as error:
                made = {"error": str(error)}
            cases.append({"source": source, "conversation": conversation, "variables": "plain", "add_generation_prompt": True, **made})
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        template = jinja.from_string(source)
        names = [name for name in VARIABLES if name == "plain" or name == "tools" and "tools" in source or "enable_thinking" in source]
        made = [{"template": path.name, "conversation": conversation, "variables": name, "add_generation_prompt": conversation != "answered",
                 **rendering(template, messages, VARIABLES[name], conversation != "answered")}
                for conversation, messages in CONVERSATIONS.items() for name in names]
        print(f"{path.stem}: {sum('text' in case for case in made)} texts, {sum('error' in case for case in made)} errors")
        cases += made
    result = {"conversations": CONVERSATIONS, "variables": VARIABLES, "cases": cases}
    (HERE / "template_renderings.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
