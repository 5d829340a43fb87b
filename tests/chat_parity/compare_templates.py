"""Compares zeroplan's Jinja with transformers' own, over templates and what they may be asked for: conversations
with tools, calls of tools, results, contents that are null or lists, reasoning, and the template's switches.

usage: compare_templates.py RENDER_VARIABLES FOLDER... [--count N] [--only NAME...] [--show N]
       compare_templates.py --expressions FILE [--write]

FOLDER: has *.jinja. Renders each template as transformers compiles it (its sandbox, filters and functions), and with
RENDER_VARIABLES. Both must give the same text, or both refuse: with raise_exception by the same sentence, otherwise by
any error. Prints a line for each template that differs, then counts; ends with 1 if there is one. Ends with 77 where
transformers or jinja2 are missing.

--expressions: compares the texts of FILE (tests/text/jinja/expressions.json) with transformers'; --write puts those
in their place. That zeroplan has the same is the test beside FILE.
"""
import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import jinja2
    from transformers.utils import chat_template_utils
except ImportError:
    print("the packages `transformers` and `jinja2` are not installed")
    sys.exit(77)

NOW = datetime.datetime(2024, 7, 26, 12, 0, 0)


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedClock

WORDS = ["a", "the", "Answer", "is", "42", "see", "\n", "\n\n", "  ", "\t", "é", "中文", "😀", "<|im_end|>", "</s>",
         "[INST]", "don't", "x=1;", "\u00a0", "\u3000", "ﬁ", "ß", "{{ x }}", "{% if %}", "\"q\"", "\\n", "<think>",
         "</think>", "\n</think>\n", "<b>&amp;</b>", "\r\n", "1234567", "<tool_call>", "</tool_call>", "#", "%s", "{}"]
NUMBERS = [0, 1, -7, 3.5, 1e-7, 1e22, 12345678901234567890, True, False, None, 0.1]


def words(rng):
    return rng.choice(["", " "]).join(rng.choice(WORDS) for _ in range(rng.randrange(8)))


def schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "array", "object", "enum", "union", "many"])
    out = {"type": kind if kind in ("string", "integer", "number", "boolean", "array", "object") else "string"}
    if rng.random() < 0.7:
        out["description"] = words(rng)
    if kind == "array":
        out["items"] = schema(rng, depth + 1) if depth < 2 else {"type": "string"}
    if kind == "object":
        names = rng.sample(["x", "y", "items", "keys", "Größe"], rng.randrange(3))
        out["properties"] = {name: schema(rng, depth + 1) if depth < 2 else {"type": "string"} for name in names}
        if rng.random() < 0.5:
            out["required"] = names[:1]
        if rng.random() < 0.2:
            out["additionalProperties"] = rng.choice([False, {"type": "string"}])
    if kind == "enum":
        out["enum"] = ["a", "b", "ü"]
    if kind == "union":
        out.pop("type")
        out["anyOf"] = [{"type": "string"}, {"type": "null"}]
    if kind == "many":
        out["type"] = ["string", "null"]
    if rng.random() < 0.2:
        out["default"] = rng.choice(["d"] + NUMBERS)
    return out


def tool(rng, index):
    names = rng.sample(["city", "count", "unit", "filter", "values"], rng.randrange(4))
    parameters = {"type": "object", "properties": {name: schema(rng) for name in names}}
    if rng.random() < 0.7:
        parameters["required"] = names[:1]
    function = {"name": f"tool_{index}", "description": words(rng) or "Does it.", "parameters": parameters}
    if rng.random() < 0.2:
        function["return"] = {"type": "string", "description": "what"}
    return function if rng.random() < 0.05 else {"type": "function", "function": function}


def arguments(rng):
    values = ["x", words(rng), [1, "a", None], {"k": [1.5, True]}, {}] + NUMBERS
    given = {name: rng.choice(values) for name in rng.sample(["city", "count", "unit"], rng.randrange(3))}
    return json.dumps(given) if rng.random() < 0.3 else given


def call(rng, index):
    made = {"type": "function", "function": {"name": f"tool_{rng.randrange(3)}", "arguments": arguments(rng)}}
    if rng.random() < 0.7:
        made["id"] = rng.choice(["call_%d" % index, "%09d" % index])
    return made["function"] if rng.random() < 0.1 else made


def content(rng, plain):
    chance = rng.random()
    if plain or chance < 0.7:
        return words(rng)
    parts = [{"type": "text", "text": words(rng)} for _ in range(rng.randrange(1, 3))]
    if chance > 0.95:
        parts.insert(0, {"type": "image"})
    return parts


def messages(rng, plain):
    out = []
    if rng.random() < 0.4:
        out.append({"role": "system" if plain else rng.choice(["system", "developer"]), "content": content(rng, plain)})
    for turn in range(rng.randrange(1, 4)):
        out.append({"role": "user", "content": content(rng, plain)})
        if not plain and rng.random() < 0.4:
            calls = [call(rng, turn * 3 + i) for i in range(rng.randrange(1, 3))]
            asked = {"role": "assistant", "content": rng.choice([None, "", words(rng)]), "tool_calls": calls}
            if rng.random() < 0.1:
                del asked["content"]
            if rng.random() < 0.3:
                asked["reasoning_content"] = words(rng)
            out.append(asked)
            for made in calls:
                result = {"role": rng.choice(["tool", "tool", "tool", "ipython"]), "content": content(rng, plain),
                          "name": "tool_0"}
                if rng.random() < 0.7:
                    result["tool_call_id"] = made.get("id", "000000000")
                if rng.random() < 0.1:
                    result["content"] = {"temperature": 1.5, "words": ["a", None]}
                out.append(result)
        said = {"role": "assistant", "content": content(rng, plain)}
        if rng.random() < 0.2:
            said[rng.choice(["reasoning_content", "thinking", "reasoning"])] = words(rng)
        if not plain and rng.random() < 0.1:
            said["tool_calls"] = rng.choice([None, []])
        out.append(said)
    if rng.random() < 0.3:
        out.pop()
    if rng.random() < 0.15:
        rng.shuffle(out)
    return out


def variables(rng):
    plain = rng.random() < 0.5
    given = {"messages": messages(rng, plain), "add_generation_prompt": rng.random() < 0.5, "tools": None, "documents": None,
             "bos_token": "<s>", "eos_token": "</s>"}
    if rng.random() < 0.4:
        given["tools"] = [tool(rng, i) for i in range(rng.randrange(1, 4))]
    if rng.random() < 0.1:
        given["documents"] = [{"title": words(rng), "text": words(rng), "snippet": "s", "doc_id": "1"}]
    if rng.random() < 0.5:
        given["pad_token"] = "<pad>"
        given["unk_token"] = "<unk>"
    for name, values in {
            "enable_thinking": [True, False], "thinking": [True, False], "reasoning_effort": ["low", "high"],
            "continue_final_message": [True], "date_string": ["1 Jan 2025"], "builtin_tools": [["python"]],
            "tools_in_user_message": [False, True], "add_vision_id": [True], "model_identity": ["You are it."],
            "custom_tools": [None], "thinking_budget": [0, 512, -1], "preserve_thinking": [True],
            "clear_thinking": [False, True], "citation_mode": ["fast"], "tool_choice": ["auto"],
            "system_message": ["Sys."], "chat_template_kwargs": [{}]}.items():
        if rng.random() < 0.15:
            given[name] = rng.choice(values)
    return given


def expected(template, given):
    try:
        return {"text": template.render(**given)}
    except jinja2.exceptions.TemplateError as error:
        own = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error) if own else f"{type(error).__name__}: {error}", "refused": own}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "refused": False}


def compare(program, file, lines, show):
    """(what it comes to, how many refused by each, what differs)"""
    source = file.read_bytes().decode("utf-8")
    try:
        template = chat_template_utils._compile_jinja_template(source)
        error = None
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as given:
        given.write("".join(line + "\n" for line in lines))
        given.flush()
        done = subprocess.run([program, str(file), given.name, NOW.strftime("%Y-%m-%d")], capture_output=True)
    ours_error = done.stderr.decode("utf-8").strip() if done.returncode else None
    if error is not None or ours_error is not None:
        kind = "no Jinja, for both" if error and ours_error else "differs"
        return kind, 0, 0, [] if kind != "differs" else [f"  zeroplan {ours_error}\n  transformers {error}"]
    refused = failed = 0
    differing = []
    for line, answer in zip(lines, done.stdout.decode("utf-8").split("\n")):
        ours = json.loads(answer)
        theirs = expected(template, json.loads(line))
        refused += theirs.get("refused", False)
        failed += "error" in theirs and not theirs["refused"]
        same = ours == theirs or ("error" in ours and "error" in theirs and not theirs["refused"]
                                  and not ours["refused"])
        if not same:
            differing.append(f"  zeroplan     {str(ours)[:show]}\n  transformers {str(theirs)[:show]}\n  for {line[:show]}")
    kind = "differs" if differing else "same"
    return kind, refused, failed, differing


def compare_expressions(file, write):
    known = json.loads(file.read_text(encoding="utf-8"))
    differing = 0
    for case in known["cases"]:
        try:
            text = expected(chat_template_utils._compile_jinja_template(case[0]), known["variables"]).get("text")
        except Exception:  # when it is compiled
            text = None
        if case[1] != text:
            differing += 1
            print(f"{case[0]!r}: {case[1]!r}\n  transformers: {text!r}")
            case[1] = text
    if write:
        lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in known["cases"])
        variables = json.dumps(known["variables"], ensure_ascii=False)
        file.write_text(f'{{"variables": {variables},\n "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(known['cases'])} expressions: {differing} differ")
    return 1 if differing else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--expressions", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--show", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.expressions:
        return compare_expressions(options.expressions, options.write)
    rng = random.Random(options.seed)
    lines = [json.dumps(variables(rng), ensure_ascii=False) for _ in range(options.count)]
    files = [file for folder in options.folders for file in sorted(pathlib.Path(folder).glob("*.jinja"))
             if not options.only or any(name in file.name for name in options.only)]
    kinds = collections.Counter()
    rendered = collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        outcomes = pool.map(compare, [options.program] * len(files), files, [lines] * len(files),
                            [options.show] * len(files), chunksize=4)
        for file, (kind, refused, failed, differing) in zip(files, outcomes):
            kinds[kind] += 1
            if kind == "same":
                rendered["texts"] += len(lines) - refused - failed
                rendered["refused"] += refused
                rendered["failed"] += failed
                kinds["of them without a text"] += refused + failed == len(lines)
            if differing:
                print(f"{file.name}: {len(differing)} of {len(lines)} differ\n{differing[0]}", flush=True)
    print(f"{len(files)} templates, {len(lines)} conversations each: {dict(kinds)}; of the same: {dict(rendered)}")
    return 1 if kinds["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
