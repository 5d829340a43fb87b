"""Compares what `zeroplan data tokenize` makes of texts, prompts and completions and conversations with what TRL's
SFTTrainer trains on: ids, and which tokens count. TRL tokenizes with transformers alone, in a few lines that stand
here (tokenize_fn, trl/trainer/sft_trainer.py): texts and completions with the end-of-text token behind them and the
tokenizer's special tokens around them; of a prompt and its completion, what is behind the prompt counts.

Then come the forms that people write such data in (record_forms.py): each must give the ids and the mask that
transformers has for the same records in its own form, or be refused with the member that is not taken.

usage: compare_records.py ZEROPLAN TOKENIZERS [--count N]

TOKENIZERS: the folder with tokenizer.json files of tests/fixtures. Prints a line for each tokenizer and kind of
record, and ends with 1 if anything differs, with 77 where transformers is missing.

Two things are not compared, as they are other here: a text that begins with the token that the tokenizer puts before
texts has it once here and twice there; and of a conversation's completion nothing counts here behind the tokens that
end the turn (a line feed in most templates).
"""
import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

from compare_chats import content, conversation, make_folder
from record_forms import FORMS

TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# A template of tools, calls, results and thoughts. Where it marks what the assistant says, transformers says which tokens
# count; without these marks zeroplan has to find the same by itself.
CHAT = """{% if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% if mood %}<|im_start|>mood
{{ mood }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}{% if m['role'] == 'tool' and m['name'] %} {{ m['name'] }}{% endif %}

{% if m['role'] == 'assistant' and not m['skip'] %}{% generation %}SAYS{% endgeneration %}{% else %}SAYS{% endif %}

{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""".replace("SAYS", """{% if m['reasoning_content'] %}<think>{{ m['reasoning_content'] }}</think>{% endif %}
{{ m['content'] or '' }}{% for call in m['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>
{% endfor %}<|im_end|>""".replace("\n", ""))
UNMARKED = CHAT.replace("{% generation %}", "").replace("{% endgeneration %}", "")
KINDS = [("gpt2", ("<|endoftext|>", "<|endoftext|>")), ("llama2", ("<s>", "</s>")),
         ("llama3", ("<|begin_of_text|>", "<|end_of_text|>")), ("mistral_v03", ("<s>", "</s>")),
         ("qwen2", ("<|endoftext|>", "<|im_end|>")), ("gemma", ("<bos>", "<eos>"))]


def documents(path):
    """Ids and masks of a token file's documents (docs/data.md)."""
    data = path.read_bytes()
    header = struct.unpack_from("<256i", data)
    size = {20240520: "H", 20240801: "I"}[header[0]]
    tokens, count = struct.unpack_from("<2q", data, 14 * 4)
    ids = struct.unpack_from(f"<{tokens}{size}", data, 1024)
    at = (1024 + tokens * struct.calcsize(size) + 7) // 8 * 8
    begins = list(struct.unpack_from(f"<{count}q", data, at)) + [tokens]
    mask = data[at + 8 * count:] if header[18] else b"\xff" * (tokens // 8 + 1)
    counted = [mask[i // 8] >> i % 8 & 1 for i in range(tokens)]
    return [(list(ids[a:b]), counted[a:b]) for a, b in zip(begins, begins[1:])]


def with_end(text, tokenizer):
    return text if text.endswith(tokenizer.eos_token) else text + tokenizer.eos_token


def expected(tokenizer, record):
    """Ids and mask; None for a mask that TRL warns of: the prompt's tokens are not those that the whole begins with."""
    if "text" in record:
        ids = tokenizer(with_end(record["text"], tokenizer))["input_ids"]
        return ids, [1] * len(ids)
    if "messages" in record:
        text = tokenizer.apply_chat_template(record["messages"], tokenize=False)
        return tokenizer(text, add_special_tokens=False)["input_ids"], None
    if isinstance(record["prompt"], str):
        before = tokenizer(record["prompt"])["input_ids"]
        ids = tokenizer(with_end(record["prompt"] + record["completion"], tokenizer))["input_ids"]
    else:
        apply = tokenizer.apply_chat_template
        before = tokenizer(apply(record["prompt"], tokenize=False, add_generation_prompt=True),
                           add_special_tokens=False)["input_ids"]
        ids = tokenizer(apply(record["prompt"] + record["completion"], tokenize=False),
                        add_special_tokens=False)["input_ids"]
    same = ids[:len(before)] == before
    return ids, [0] * len(before) + [1] * (len(ids) - len(before)) if same else None


def same_mask(tokenizer, ids, ours, theirs):
    """Up to white space behind a turn's end."""
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b and (a or tokenizer.decode(ids[i:]).strip()):
            return False
    return True


def records(kind, rng):
    if kind == "text":
        return {"text": content(rng) + "x"}
    if kind == "completion":
        return {"prompt": content(rng) + "p", "completion": " " + content(rng) + "c"}
    messages = [{"role": m["role"], "content": m["content"]} for m in conversation(rng)["messages"]]
    if kind == "conversation":
        return {"messages": messages + [{"role": "assistant", "content": "y"}]}
    return {"prompt": messages + [{"role": "user", "content": "u"}],
            "completion": [{"role": "assistant", "content": content(rng)}]}


def compare(program, name, tokenizer_json, specials, count, rng):
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_folder(folder, tokenizer_json, TEMPLATE, specials)
        for kind in ("text", "completion", "conversation", "conversation with a completion"):
            rows = [records(kind, rng) for _ in range(count)]
            path, out = pathlib.Path(folder, "data.jsonl"), pathlib.Path(folder, "out.bin")
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            done = tokenize(program, path, folder, out)
            if done.returncode != 0:
                print(f"{name}, {kind}: {done.stderr}")
                return 1
            made = documents(out)
            out.unlink()
            wrong = masks = 0
            assert len(made) == len(rows)
            for row, (ids, mask) in zip(rows, made):
                their_ids, their_mask = expected(tokenizer, row)
                masks += their_mask is not None
                if ids == their_ids and (their_mask is None or same_mask(tokenizer, ids, mask, their_mask)):
                    continue
                wrong += 1
                if wrong == 1:
                    print(f"{name}, {kind}: differs for {json.dumps(row)}\n  zeroplan {ids} {mask}\n"
                          f"  TRL      {their_ids} {their_mask}")
            print(f"{name}, {kind}: {len(rows)} records, {masks} masks: {wrong} differ", flush=True)
            differing += wrong
    return differing


def tokenize(program, path, folder, out, *options):
    return subprocess.run([program, "data", "tokenize", path, "--tokenizer", folder, "-o", out, *options],
                          capture_output=True, text=True, env={**os.environ, "ZEROPLAN_NO_DETECT": "1", "ZEROPLAN_PYTHON": sys.executable})


def of_form(tokenizer, record):
    if "messages" not in record:
        return expected(tokenizer, record)
    made = tokenizer.apply_chat_template(record["messages"], tools=record.get("tools"), chat_template=CHAT, tokenize=True,
                                         return_dict=True, return_assistant_tokens_mask=True, **record.get("kwargs", {}))
    return made["input_ids"], made["assistant_masks"]


def compare_form(program, folder, tokenizer, form):
    """What differs; nothing: it is the same."""
    suffix, text, records, *more = form[1:]
    path, out = pathlib.Path(folder, "data" + suffix), pathlib.Path(folder, "out.bin")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    out.unlink(missing_ok=True)
    done = tokenize(program, path, folder, out, *more)
    if isinstance(records, str):
        refused = done.returncode == 2 and path.name in done.stderr and records in done.stderr
        return None if refused and not out.exists() else f"is not refused by '{records}': {done.stderr}"
    if done.returncode != 0:
        return done.stderr
    made, theirs = documents(out), [of_form(tokenizer, record) for record in records]
    assert any(1 in mask for _, mask in theirs)
    if len(made) != len(theirs):
        return f"{len(made)} documents, not {len(theirs)}"
    for (ids, mask), (their_ids, their_mask) in zip(made, theirs):
        if ids != their_ids or mask != their_mask:
            return f"\n  zeroplan {tokenizer.decode(ids)!r} {mask}\n  TRL      {tokenizer.decode(their_ids)!r} {their_mask}"
    return None


def compare_forms(program, tokenizer_json, specials):
    wrong = 0
    forms = [form for form in FORMS if form[2] is not None]
    for template in (CHAT, UNMARKED):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = make_folder(folder, tokenizer_json, template, specials)
            for form in forms:
                differs = compare_form(program, folder, tokenizer, form)
                if differs:
                    wrong += 1
                    print(f"{form[0]}: {differs}")
    refused = sum(isinstance(form[3], str) for form in forms)
    print(f"{len(forms)} forms, {refused} of them refused, with two templates: {wrong} differ", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizers")
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    rng = random.Random(2)
    failed = sum(bool(compare(options.program, name, pathlib.Path(options.tokenizers) / f"{name}.json", specials,
                              options.count, rng)) for name, specials in KINDS)
    print(f"{len(KINDS)} tokenizers: {failed} differ")
    failed += compare_forms(options.program, pathlib.Path(options.tokenizers) / "qwen2.json", dict(KINDS)["qwen2"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
