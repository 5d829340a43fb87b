"""Compares zeroplan's rendering of conversations with transformers' apply_chat_template: text, ids, the text
with a generation prompt, what is refused, and which tokens count: for templates with {% generation %} those of
transformers' mask; for others each of the assistant's turns must begin where the generation prompt of the messages
before it ends, if that prompt is the beginning of the text.

usage: compare_chats.py RENDER_CHATS TOKENIZERS [--templates FOLDER] [--count N] [--only NAME...]

TOKENIZERS: the folder with tokenizer.json files of tests/fixtures. Templates are those of the PyPI package
`trl` (trl/chat_templates, which has those of published models), of FOLDER (*.jinja), and some of our own that try
out what Jinja can do. Prints a line for each template, and ends with 1 if anything differs.
"""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

try:
    import jinja2
    import transformers
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError:
    print("the packages `transformers` and `jinja2` are not installed")
    sys.exit(77)

# Each tries some of Jinja; written for this test.
OWN = {
    "white_space": "  \n{% if true %}\n  a\n  {%- if messages %} b {% endif -%} \n c\n{% endif %}  \n{# note #}\n"
                   "\t{% for m in messages %}\n   {{ m.role }}:\n {%+ if true %} x{% endif +%}\n\n{% endfor %}\n end \n",
    "loops": "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}"
             "{{ loop.last }}{{ loop.revindex0 }}{% if loop.previtem is defined %}<{{ loop.previtem.role }}"
             "{% endif %}{% if not loop.last %}>{{ loop.nextitem['role'] }}{% endif %}{% else %}none{% endfor %}",
    "break": "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}{% if m.role == 'system' %}"
             "{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "scopes": "{% set x = 1 %}{% set ns = namespace(n=0, seen=[]) %}{% for m in messages %}{% set x = x + 1 %}"
              "{% set ns.n = ns.n + x %}{% set ns.seen = ns.seen + [m.role] %}{{ x }}{% endfor %}{{ x }}{{ ns.n }}"
              "{{ ns.seen | join(', ') }}{% if true %}{% set x = 7 %}{% endif %}{{ x }}{{ nothing }}",
    "macros": "{% macro turn(role, text, end='.') %}[{{ role }}|{{ text | trim }}{{ end }}{{ y }}]{% endmacro %}"
              "{% set y = '!' %}{% for m in messages %}{{ turn(m.role, m.content) }}"
              "{{ turn(m['role'], text='t', end='') }}{% endfor %}{% set b %} block {{ y }}{% endset %}{{ b }}",
    "texts": "{% for m in messages %}{{ m.content.strip() }}|{{ m.content.lstrip('a ') }}|{{ m.content[:3] }}|"
             "{{ m.content[-2:] }}|{{ m.content[1:-1] }}|{{ m.content.split('e')[-1] }}|{{ m.content | length }}|"
             "{{ m.content.startswith('a') }}{{ 'e' in m.content }}{{ m.content.replace('e', '--') }}|"
             "{{ m.content | tojson }}|{{ m.content[0] }}|{{ m.content.rstrip('\\n') ~ 3 ~ none ~ true }}{% endfor %}",
    "lists": "{{ messages[::-1][0].content }}{{ messages[-1]['role'] }}{{ messages[1:] | length }}"
             "{{ (messages | last).role }}{{ messages | map(attribute='role') | join('+') }}"
             "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
             "{{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='content') | join }}"
             "{{ [1, 2] + [3] == [1, 2, 3] }}{{ 'user' in messages | map(attribute='role') | list }}"
             "{{ range(2, 5) | join('-') }}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}",
    "logic": "{{ 1 if messages else 2 }}{{ 'x' if false }}{{ 7 // 2 * 3 % 5 - -7 % 3 }}{{ -7 // 2 }}"
             "{{ not messages is defined or tools is none and documents is not defined }}{{ '' or 'b' and 'c' }}"
             "{{ 2 > 1 and 'a' < 'b' }}{{ messages[9] is defined }}{{ messages[0].nothing is undefined }}"
             "{{ true is boolean }}{{ messages is iterable and messages is not string and messages[0] is mapping }}"
             "{{ nothing | default('d') }}{{ '' | default('e', true) }}{{ 3 is odd }}{{ '\\x41\\u00e9\\'\"' \"b\" }}",
    "escapes": "{{ '{{' }}{{ \"%}\" }}{{ '}}' }}{{- ' a ' -}}  {{ {'a': {'b': [1, {'c': none}]}} | tojson }}\r\n\n",
    "refuses": "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + "
               "m.role) }}{% endif %}{% if loop.index0 and messages[loop.index0 - 1].role == m.role %}"
               "{{ raise_exception('twice') }}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
                  "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
                  "{% endfor %}",
}

WORDS = ["a", "the", "answer", "is", "42", "see", "\n", "\n\n", "  ", "\t", "é", "中文", "😀", "<|im_end|>", "</s>",
         "[INST]", "don't", "x=1;", "\u00a0", "\u3000", "ﬁ", "e\u0301", "{{ x }}", "{% if %}", "\"q\"", "\\n",
         "<think>", "</think>", "<b>&amp;</b>", "\r\n", "ا", "1234567"]


def content(rng):
    parts = [rng.choice(WORDS) for _ in range(rng.randrange(8))]
    return rng.choice(["", " "]).join(parts)


TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"x": {"type": "integer", "description": "one"}, "y": {"type": "number"}},
    "required": ["x"]}}}]


def call(rng):
    arguments = {"x": rng.randrange(100), "y": rng.choice([0.5, None, "é", [1, {"z": True}]])}
    return {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": arguments}}


def conversation(rng):
    """A record. Mostly roles in turn; sometimes anything; some think, some call tools."""
    roles = []
    if rng.random() < 0.4:
        roles.append("system")
    for _ in range(rng.randrange(1, 4)):
        roles += ["user", "assistant"]
    if rng.random() < 0.3:
        roles.pop()
    if rng.random() < 0.2:
        rng.shuffle(roles)
    messages = [{"role": role, "content": content(rng)} for role in roles]
    kind = rng.random()
    if kind < 0.2:
        for message in messages:
            if message["role"] == "assistant":
                message["reasoning_content"] = content(rng)
    record = {"messages": messages}
    if 0.2 < kind < 0.4 and roles[-2:] == ["user", "assistant"]:
        record["tools"] = TOOLS
        last = messages.pop()
        messages += [{"role": "assistant", "content": rng.choice(["", "I add."]), "tool_calls": [call(rng)]},
                     {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "7"}, last]
    if rng.random() < 0.1:
        record["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    return record


def untrimmed(value):
    """A tokenizer.json whose offsets have the white space that tokens have."""
    if isinstance(value, dict):
        return {key: False if key == "trim_offsets" else untrimmed(inner) for key, inner in value.items()}
    return [untrimmed(inner) for inner in value] if isinstance(value, list) else value


def make_folder(folder, tokenizer_json, template, specials):
    given = os.path.join(folder, "given.json")
    with open(given, "w", encoding="utf-8") as file:
        json.dump(untrimmed(json.loads(tokenizer_json.read_text(encoding="utf-8"))), file)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=given, bos_token=specials[0], eos_token=specials[1], chat_template=template,
        clean_up_tokenization_spaces=False)
    tokens = sorted(set(re.findall(r"<\|?[\w ]+\|?>|\[/?[A-Z_]+\]", template)))
    tokenizer.add_special_tokens({"additional_special_tokens": [
        transformers.AddedToken(token, special=True, normalized=False) for token in tokens]})
    tokenizer.save_pretrained(folder)
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder, clean_up_tokenization_spaces=False)


def assistant_mask(tokenizer, record, text):
    """1 for each token with something of a generation block. transformers' own mask ends with the first token
    that the last character is part of; here all tokens of that character count."""
    rendered, spans = render_jinja_template(
        [record["messages"]], chat_template=tokenizer.chat_template, return_assistant_tokens_mask=True,
        tools=record.get("tools"), **tokenizer.special_tokens_map, **record.get("chat_template_kwargs", {}))
    assert rendered == [text]
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [int(any(max(a, begin) < min(b, end) for begin, end in spans[0])) for a, b in offsets]


ERRORS = Exception  # of the template, or of Python


def expected(tokenizer, record, has_generation):
    answer = {}
    messages = record["messages"]
    others = {"tools": record.get("tools"), **record.get("chat_template_kwargs", {})}
    try:
        answer["text"] = tokenizer.apply_chat_template(messages, tokenize=False, **others)
        answer["ids"] = tokenizer(answer["text"], add_special_tokens=False)["input_ids"]
        if has_generation:
            answer["mask"] = assistant_mask(tokenizer, record, answer["text"])
    except ERRORS as error:
        answer["error"] = str(error)
    try:
        answer["prompt"] = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True,
                                                         **others)
    except ERRORS:
        answer["prompt"] = None
    return answer


# No template has it: whether it prints what a message says.
MARK = "7k2q9x"


def turns(tokenizer, record, text):
    """What stands before the assistant's turns, of those where the messages before it say so."""
    begins = []
    others = {"tools": record.get("tools"), **record.get("chat_template_kwargs", {})}
    for k, message in enumerate(record["messages"]):
        said = message["content"].rsplit("</think>", 1)[-1].strip()
        if k == 0 or message["role"] != "assistant" or not said or said not in text:
            continue
        try:
            before = tokenizer.apply_chat_template(record["messages"][:k], tokenize=False,
                                                   add_generation_prompt=True, **others)
            plain = tokenizer.apply_chat_template(record["messages"][:k], tokenize=False, **others)
            marked = tokenizer.apply_chat_template([*record["messages"][:k], {**message, "content": MARK}],
                                                   tokenize=False, **others)
        except ERRORS:
            continue
        # A template without a generation prompt has headers that nobody is to say.
        if before != plain and MARK in marked and text.startswith(before) and len(text) > len(before):
            begins.append(before)
    return begins


def compare(program, name, template, tokenizer_json, specials, conversations):
    """The number of conversations that differ; None if the template is not supported."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_folder(folder, tokenizer_json, template, specials)
        path = os.path.join(folder, "conversations.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for record in conversations:
                file.write(json.dumps(record) + "\n")
        done = subprocess.run([program, folder, path, str(datetime.date.today())], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name}: not supported: {done.stderr.strip().replace(folder, '')}")
            return None
    differing = refused = counted = checked = 0
    has_generation = "generation %}" in template
    for record, line in zip(conversations, done.stdout.split("\n")):
        ours = json.loads(line)
        theirs = expected(tokenizer, record, has_generation)
        refused += "error" in theirs
        counted += sum(ours.get("mask", []))
        same = ("error" in ours) == ("error" in theirs) and ours["prompt"] == theirs["prompt"]
        same = same and all(ours.get(key) == theirs[key] for key in ("text", "ids", "mask") if key in theirs)
        if same and "text" in theirs and not has_generation:
            begins = [before for before, _ in ours["turns"]]
            for before in turns(tokenizer, record, theirs["text"]):
                checked += 1
                if before not in begins:
                    same, ours["turn"], theirs["turn"] = False, begins, before
        if same:
            continue
        differing += 1
        if differing <= 2:
            print(f"{name}: differs for {json.dumps(record)}")
            for key in ("error", "text", "prompt", "ids", "mask", "turn"):
                if ours.get(key) != theirs.get(key) and (key in theirs or key == "error"):
                    print(f"  {key}: zeroplan     {ours.get(key)!r}\n  {key}: transformers {theirs.get(key)!r}")
    print(f"{name}: {len(conversations)} conversations, {refused} refused, {counted} tokens count, {checked} turns "
          f"looked at: {differing} differ", flush=True)
    return differing


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizers")
    parser.add_argument("--templates", action="append", default=[])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    folders = [pathlib.Path(folder) for folder in options.templates]
    trl = importlib.util.find_spec("trl")
    if trl is not None:
        folders.append(pathlib.Path(trl.submodule_search_locations[0]) / "chat_templates")
    templates = dict(OWN)
    for folder in folders:
        for file in sorted(folder.glob("*.jinja")):
            templates[file.stem] = file.read_text(encoding="utf-8")
    transformers.logging.set_verbosity_error()
    rng = random.Random(1)
    conversations = [conversation(rng) for _ in range(options.count)]
    kinds = [("qwen2", ("<|endoftext|>", "<|im_end|>")), ("llama2", ("<s>", "</s>")),
             ("llama3", ("<|begin_of_text|>", "<|eot_id|>"))]
    failed = unsupported = 0
    for index, (name, template) in enumerate(templates.items()):
        if options.only and name not in options.only:
            continue
        tokenizer, specials = kinds[index % len(kinds)]
        differing = compare(options.program, f"{name} ({tokenizer})", template,
                            pathlib.Path(options.tokenizers) / f"{tokenizer}.json", specials, conversations)
        unsupported += differing is None
        failed += bool(differing)
    print(f"{len(templates)} templates: {failed} differ, {unsupported} are not supported")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
