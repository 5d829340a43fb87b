#!/usr/bin/env python3
"""Adapters that reach the embedding and the head: PEFT's files in zeroplan's hands, and zeroplan's in PEFT's.

    python3 tests/transformers_parity/compare_embedding_adapters.py build/release/zeroplan-executor \
        build/release/tests/transformers_parity/nf4_blocks

For small random models (gpt2 and qwen2 with a tied head, llama with one of its own) PEFT makes an adapter in
each of the forms below, changes what it trains by small random numbers, and saves it as it saves it by itself.

- `zeroplan merge`: transformers' logits of the merged folder are those of PEFT's model with the adapter, in fp64;
- `zeroplan generate` prints the greedy text of transformers with the merged folder;
- `zeroplan train --adapter` and PEFT in fp64 train 50 steps from it: losses, and all that zeroplan saved beside what
  PEFT would save, as a share of each tensor's largest element; PEFT loads what zeroplan saved, to the same logits.

Forms: the embedding, the head, both, in modules_to_save, each with and without ensure_weight_tying; a vocabulary
that was resized, saved unasked or in modules_to_save, larger or smaller; trainable_token_indices of the embedding,
of the head, of both with the same or other tokens, of a resized vocabulary. A pickle has to be an error that names it.

Last, `--resize-embeddings` with `--method lora`, whose folder PEFT has to load over a base that is resized.
Exit code 1 past 1e-5; 77 where a package is missing.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from compare_adapters import (BOUND, STEPS, by_peft, by_zeroplan, greedy, largest_difference, load_file,
                              peft)
from models import corpus, families, load_tokenizer, make_model, run, torch, transformers

ADDED = ["<|a|>", "<|b|>", "<|c|>"]
LARGER, SMALLER = 403, 390
EMBED, HEAD = "embed_tokens", "lm_head"


def form(family, modules=None, ties=False, tokens=None, rows=None):
    return dict(family=family, modules=modules, ties=ties, tokens=tokens, rows=rows)


FORMS = [
    form("qwen2", [EMBED]),
    form("qwen2", [EMBED], ties=True),
    form("qwen2", [HEAD]),
    form("qwen2", [HEAD], ties=True),
    form("qwen2", [EMBED, HEAD]),
    form("qwen2", [EMBED, HEAD], ties=True),
    form("llama", [EMBED]),
    form("llama", [EMBED, HEAD], ties=True),
    form("gpt2", ["wte", "wpe"]),
    form("gpt2", [HEAD, "wpe"], ties=True),
    form("qwen2", rows=LARGER),
    form("qwen2", [EMBED], rows=LARGER),
    form("qwen2", [EMBED], ties=True, rows=LARGER),
    form("llama", rows=LARGER),
    form("llama", [EMBED], rows=LARGER),
    form("llama", [EMBED, HEAD], rows=SMALLER),
    form("gpt2", rows=LARGER),
    form("qwen2", tokens=[5, 3]),
    form("qwen2", tokens={EMBED: [5, 3], HEAD: [5, 3]}),
    form("qwen2", tokens={EMBED: [5], HEAD: [3, 6]}),
    form("qwen2", tokens={HEAD: [3, 6]}),
    form("qwen2", tokens=[5, 401], rows=LARGER),
    form("llama", tokens=[5, 3]),
    form("llama", tokens={EMBED: [5], HEAD: [3, 6]}),
    form("llama", [HEAD], tokens=[5, 3]),
    form("gpt2", tokens=[5, 3]),
    form("gpt2", tokens={HEAD: [3, 6]}),
]


def load_base(folder, rows, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype)
    if rows:
        model.resize_token_embeddings(rows)
    return model


def make_adapter(base, folder, case):
    torch.manual_seed(7)
    linears = ["c_attn", "c_fc"] if case["family"] == "gpt2" else ["q_proj", "down_proj"]
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=linears,
                             fan_in_fan_out=case["family"] == "gpt2", ensure_weight_tying=case["ties"],
                             modules_to_save=case["modules"] and list(case["modules"]),
                             trainable_token_indices=case["tokens"])
    model = peft.get_peft_model(load_base(base, case["rows"]), config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.requires_grad and "lora_A" not in name:
                tensor.add_(torch.randn_like(tensor) * 0.02)
    model.save_pretrained(folder)
    if case["rows"] == LARGER:
        tokenizer = load_tokenizer(base)
        tokenizer.add_special_tokens({"additional_special_tokens": ADDED})
        tokenizer.save_pretrained(folder)


def logits_of(model, ids):
    with torch.no_grad():
        return model.double().eval()(input_ids=torch.tensor(ids[:64])[None]).logits


def apart(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def with_adapter(base, rows, folder):
    return peft.PeftModel.from_pretrained(load_base(base, rows), folder)


def refusal(program, work, *arguments):
    """What an error says; None where there is none."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, "ZEROPLAN_CACHE_DIR": str(work / "cache")})
    return done.stderr if done.returncode == 2 else None


def train_arguments(base, adapter, work):
    return ["train", "--model", base, "--adapter", adapter, "--data", work / "train.txt", "--steps", 1,
            "--seq-len", 32]


def compare(program, work, number, case):
    family = case["family"]
    base, adapter = work / family, work / f"adapter-{number}"
    if not base.exists():
        make_model(families()[family], base)
    make_adapter(base, adapter, case)
    ids = load_tokenizer(base)((work / "train.txt").read_text())["input_ids"]
    ids.append(load_tokenizer(base).eos_token_id)
    if case["rows"] == SMALLER:
        ids = [min(token, SMALLER - 1) for token in ids]
    found, good = {}, True
    merged = work / f"merged-{number}"
    run(program, "merge", adapter, "--model", base, "-o", merged, "--save-dtype", "fp32",
        cache=work / "cache")
    ours = load_base(merged, None)
    found["merged"] = apart(logits_of(ours, ids), logits_of(with_adapter(base, case["rows"], adapter), ids))
    if case["rows"] != SMALLER:  # whose tokenizer knows more tokens
        text = run(program, "generate", base, "--adapter", adapter, "--prompt", "The step program", "--tokens",
                   24, "--temperature", 0, "--dtype", "fp32", cache=work / "cache")
        tokenizer = load_tokenizer(adapter if case["rows"] == LARGER else base)
        good = text == greedy(load_base(merged, None).eval(), tokenizer, "The step program", 24) + "\n"
        wide = base
        if case["rows"]:
            wide = work / f"wide-{number}"
            load_base(base, case["rows"]).save_pretrained(wide)
        theirs, model = by_peft(wide, adapter, ids, torch.float64)
        out = work / f"out-{number}"
        ours = by_zeroplan(program, base, adapter, work, out)
        assert len(ours) == len(theirs) == STEPS
        found["losses"] = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
        saved = {name: tensor.double()
                 for name, tensor in load_file(out / "adapter_model.safetensors").items()}
        model.save_pretrained(work / f"theirs-{number}", save_embedding_layers=bool(case["rows"]) or "auto")
        expected = {name: tensor
                    for name, tensor in load_file(work / f"theirs-{number}" / "adapter_model.safetensors").items()
                    if ".modules_to_save." not in name and ".original_module." not in name}
        # A head that PEFT had from the file and leaves out when it saves again.
        before = load_file(adapter / "adapter_model.safetensors")
        for name in saved.keys() - expected.keys():
            assert saved.pop(name).equal(before[name].double())
        found["adapters"] = largest_difference(saved, expected)
        found["logits"] = apart(logits_of(with_adapter(base, case["rows"], out), ids), logits_of(model, ids))
    good = good and all(value < BOUND for value in found.values())
    words = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
    shown = {name: value for name, value in case.items() if value}
    print(f"{shown}: {words}: {'agree' if good else 'DIFFER'}", flush=True)
    return good


def compare_resized(program, work, family, save):
    """Adapters that zeroplan trains from nothing over a vocabulary that it resizes."""
    base, out, merged = work / f"added-{family}", work / f"out-{family}-{save}", work / f"m-{family}-{save}"
    if not base.exists():
        shutil.copytree(work / family, base)
        tokenizer = load_tokenizer(base)
        tokenizer.add_special_tokens({"additional_special_tokens": ADDED})
        tokenizer.save_pretrained(base)
    ids = load_tokenizer(base)((work / "train.txt").read_text())["input_ids"]
    run(program, "train", "--model", base, "--method", "lora", "--resize-embeddings", "--data",
        work / "train.txt", "--steps", 5, "--lr", "1e-2", "--seq-len", 32, "--threads", 2, "--save", out,
        *(["--lora-save", save] if save else []), cache=work / "cache")
    run(program, "merge", out, "-o", merged, "--save-dtype", "fp32", cache=work / "cache")
    theirs = with_adapter(base, LARGER, out)
    found = apart(logits_of(load_base(merged, None), ids), logits_of(theirs, ids))
    print(f"{family}, resized by train, saved: {save or 'unasked'}: merged {found:.1e}", flush=True)
    return found < BOUND


def compare_pickle(program, work):
    adapter = work / "pickled"
    shutil.copytree(work / "adapter-0", adapter)
    tensors = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(tensors, adapter / "adapter_model.bin")
    merged = work / "unpickled"
    said = [refusal(program, work, "merge", adapter, "--model", work / "qwen2", "-o", merged),
            refusal(program, work, "generate", work / "qwen2", "--adapter", adapter, "--prompt", "a"),
            refusal(program, work, *train_arguments(work / "qwen2", adapter, work))]
    good = all(text is not None and "adapter_model.bin" in text and "is a pickle" in text for text in said)
    # What the error says to do.
    command = said[0][said[0].index('python3 -c "') + len('python3 -c "'):said[0].rindex('"')]
    subprocess.run([sys.executable, "-c", command], check=True)
    run(program, "merge", adapter, "--model", work / "qwen2", "-o", merged, "--save-dtype", "fp32",
        cache=work / "cache")
    good = good and (merged / "model.safetensors").read_bytes() == \
        (work / "merged-0" / "model.safetensors").read_bytes()
    print(f"a pickle: {'refused, and read when it is none' if good else 'DIFFERS'}", flush=True)
    return good


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "train.txt").write_text("\n".join(corpus())[:40_000])
        good = [compare(program, work, number, case) for number, case in enumerate(FORMS)]
        good += [compare_resized(program, work, family, save)
                 for family, save in [("qwen2", ""), ("qwen2", EMBED), ("llama", ""),
                                      ("llama", f"{EMBED},{HEAD}"), ("gpt2", "")]]
        good.append(compare_pickle(program, work))
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
