#!/usr/bin/env python3
"""LoRA by PEFT and by `zeroplan train --method lora`, in fp32, from the same initial adapters, and QLoRA.

    python3 tests/transformers_parity/compare_adapters.py build/release/zeroplan-executor \
        build/release/tests/transformers_parity/nf4_blocks

For small random models (gpt2, llama with grouped heads, qwen2 with biases and a tied head, mistral)
PEFT makes an adapter and saves it; B, which PEFT leaves zero, is filled with small numbers, so that
A has a gradient from the first step on. Then both train 50 steps on the same tokens in the same
order, 2 sequences a micro-batch and 2 micro-batches a step, AdamW with weight decay and clipping. Its
epsilon is about as large as the gradients are, so that rounding of one near zero does not become a
whole step.

- the losses of every step, and the final adapters as a share of each tensor's largest element, beside
  PEFT's in fp64; PEFT's own fp32 is printed beside;
- PEFT loads what zeroplan saved: its logits are those of PEFT's own in fp64;
- `zeroplan merge` and PEFT's merge_and_unload make the same weights;
- `zeroplan generate` with the adapter prints the greedy text of transformers.

Cases: all linears; q_proj and v_proj alone; rsLoRA; a module that is trained whole; ranks and alphas
by name; linears of some layers, said by layers_to_transform, exclude_modules, a regular expression or
whole names; full recompute over two ranks at stage 3; `--method qlora`, alone and over two ranks at
stage 3, beside PEFT over the weights that the NF4 stands for. Exit code 1 past 1e-5; 77 where a
package is missing.

Then every other form of LoRA that PEFT makes is merged: to the weights of PEFT's merge_and_unload, or it
is refused with the key that asks for it.

Where bitsandbytes is there, QLoRA's losses are also compared with PEFT's over its NF4. The two differ
in the offset of the second quantization: by less than a tenth of what NF4 itself changes. GPT-2 is left
out: bitsandbytes quantizes its matrices turned.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from models import SKIP, corpus, families, load_tokenizer, make_model, run, torch, transformers

try:
    import peft
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(SKIP)

STEPS, LENGTH, ROWS, MICRO_STEPS = 50, 32, 2, 2
RATE, DECAY, NORM, EPSILON = 3e-3, 0.1, 1.0, 1e-3
BOUND = 1e-5

ALL = dict(target_modules="all-linear", r=8, lora_alpha=16)
CASES = [
    ("gpt2", dict(ALL, fan_in_fan_out=True), {}),
    ("llama", ALL, {}),
    ("llama", dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=4), {}),
    ("qwen2", dict(ALL, lora_alpha=4, use_rslora=True), {}),
    ("mistral", dict(ALL, modules_to_save=["lm_head"]), {}),
    ("llama", dict(ALL, rank_pattern={"q_proj": 4, "layers.1.mlp.down_proj": 12},
                   alpha_pattern={"v_proj": 5, r".*\.(k|o)_proj": 3}), {}),
    ("qwen2", dict(ALL, use_rslora=True, exclude_modules=["k_proj", "model.layers.0.mlp.up_proj"],
                   rank_pattern={r"layers\.0\..*": 2}, alpha_pattern={"^model.*gate_proj": 7}), {}),
    ("mistral", dict(target_modules=r".*layers\.1\.(self_attn\.[qkv]|mlp\.gate)_proj", r=8,
                     lora_alpha=16, rank_pattern={"k_proj": 2}),
     dict(ranks=2, stage=3, recompute=True)),
    ("gpt2", dict(target_modules=["c_attn", "c_proj"], r=8, lora_alpha=16, layers_to_transform=[1],
                  layers_pattern="h", rank_pattern={"attn.c_proj": 2}, fan_in_fan_out=True), {}),
    ("llama", dict(target_modules=["model.layers.0.self_attn.q_proj", "layers.1.self_attn.v_proj",
                                   "model.layers.1.mlp.down_proj"], r=8, lora_alpha=16,
                   alpha_pattern={"v_proj": 4}), dict(method="qlora")),
    ("llama", ALL, dict(ranks=2, stage=3, recompute=True)),
    ("llama", ALL, dict(method="qlora")),
    ("gpt2", dict(ALL, fan_in_fan_out=True), dict(method="qlora", ranks=2, stage=3, recompute=True)),
]
QV = dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=6)
# Merged as PEFT merges them.
MERGED = [
    dict(QV, init_lora_weights=False), dict(QV, init_lora_weights="gaussian"),
    dict(QV, init_lora_weights="orthogonal"), dict(QV, init_lora_weights="mica"),
    dict(QV, layers_to_transform=0), dict(QV, layers_to_transform=[1, 7], layers_pattern=["h", "layers"]),
    dict(QV, target_modules=["q_proj", "model.layers.0.mlp.up_proj"], layers_to_transform=[1]),
    dict(ALL, exclude_modules=r".*mlp.*"), dict(ALL, modules_to_save=["down_proj"]),
    dict(QV, target_modules=r"(?:.*?(?:self_attn|attn).*?(?:q_proj|k_proj).*?)"),
    dict(QV, target_modules=["q_proj", "c_attn"], rank_pattern={"layers.1.*": 3, "q_proj": 2}),
]
# Refused, with the key.
REFUSED = [
    ("init_lora_weights", dict(QV, init_lora_weights="pissa")),
    ("init_lora_weights", dict(QV, init_lora_weights="pissa_niter_2")),
    ("init_lora_weights", dict(QV, init_lora_weights="olora")),
    ("use_dora", dict(QV, use_dora=True)),
    ("lora_bias", dict(QV, target_modules=["q_proj"], lora_bias=True)),
    ("bias", dict(QV, bias="all")),
    ("alora_invocation_tokens", dict(QV, alora_invocation_tokens=[5, 6])),
    ("layer_replication", dict(QV, layer_replication=[(0, 2), (1, 2)])),
    ("target_parameters", dict(QV, target_modules=[], target_parameters=["q_proj.weight"])),
    ("use_bdlora", dict(QV, use_bdlora=peft.tuners.lora.config.BdLoraConfig(
        target_modules_bd_b=["q_proj", "v_proj"], nblocks=2))),
    ("kasa_config", dict(QV, kasa_config=peft.tuners.lora.config.KasaConfig())),
    ("velora_config", dict(QV, velora_config=peft.tuners.lora.config.VeloraConfig(num_groups=4))),
    ("monteclora_config", dict(QV, monteclora_config=peft.tuners.lora.config.MontecloraConfig())),
    ("target_modules", dict(QV, target_modules=["q_proj", "lm_head"])),
    ("target_modules", dict(QV, target_modules=["q_proj", "embed_tokens"])),
]
# What PEFT makes only with data or other adapters: an adapter that says so.
SAID = [
    ("init_lora_weights", "corda"), ("init_lora_weights", "lora_ga"), ("init_lora_weights", "loftq"),
    ("arrow_config", {"top_k": 3}), ("use_qalora", True), ("of_a_later_peft", 3),
]
# Rows of whole groups of 64, which bitsandbytes' CPU kernels need.
WIDE = dict(hidden_size=64, intermediate_size=128, head_dim=16)
# Linears that zeroplan keeps as one matrix.
TOGETHER = {"q_proj": ["q_proj", "k_proj", "v_proj"], "gate_proj": ["gate_proj", "up_proj"]}


def make_adapter(base, folder, config):
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    for name, tensor in model.named_parameters():
        if "lora_B" in name or not tensor.any():  # MiCA's A is zero
            torch.nn.init.normal_(tensor, std=0.02)
    model.save_pretrained(folder)


def rounded_to_nf4(base, folder, tool):
    """The model in `base` with the linears of its layers as NF4 has them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32)
    held = model.state_dict()
    for name in list(held):
        module, last = name.rsplit(".", 2)[0], name.split(".")[-2]
        is_linear = ".layers." in name or ".h." in name
        if not is_linear or not name.endswith("weight") or held[name].dim() != 2:
            continue
        if any(last in others[1:] for others in TOGETHER.values()):
            continue
        parts = [held[f"{module}.{other}.weight"] for other in TOGETHER.get(last, [last])]
        whole = torch.cat([part.flatten() for part in parts])
        out = subprocess.run([tool], input=whole.numpy().tobytes(), stdout=subprocess.PIPE,
                             check=True).stdout
        blocks = -(-whole.numel() // 16384) * 8464
        back = torch.frombuffer(bytearray(out[blocks:blocks + 4 * whole.numel()]),
                                dtype=torch.float32)
        for part, values in zip(parts, back.split([part.numel() for part in parts])):
            part.copy_(values.view_as(part))
    model.save_pretrained(folder)


def by_peft(base, adapter, ids, dtype=torch.float32, **loading):
    """Losses, and the model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, torch_dtype=dtype, **loading)
    model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True,
                                           autocast_adapter_dtype=False)
    if not loading:
        model = model.to(dtype)
    model.train()  # nothing drops out; bitsandbytes packs for inference else
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    update = torch.optim.AdamW(trained, lr=RATE, weight_decay=DECAY, eps=EPSILON,
                               betas=(0.9, 0.999))
    losses, k = [], 0
    for _ in range(STEPS):
        whole = 0.0
        for _ in range(MICRO_STEPS):
            rows = torch.stack([torch.tensor(ids[(k + i) * LENGTH:(k + i) * LENGTH + LENGTH + 1])
                                for i in range(ROWS)])
            k += ROWS
            logits = model(input_ids=rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            (loss / MICRO_STEPS).backward()
            whole += loss.item() / MICRO_STEPS
        torch.nn.utils.clip_grad_norm_(trained, NORM)
        update.step()
        update.zero_grad()
        losses.append(whole)
    return losses, model.eval()


def by_zeroplan(program, base, adapter, work, out, ranks=1, stage=0, recompute=False,
                method="lora"):
    metrics, config = work / f"{out.name}.jsonl", work / f"{out.name}.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": ROWS // ranks,
        "gradient_accumulation_steps": MICRO_STEPS,
        "gradient_clipping": NORM,
        "optimizer": {"type": "AdamW", "params": {
            "lr": RATE, "betas": [0.9, 0.999], "eps": EPSILON, "weight_decay": DECAY}},
        "zero_optimization": {"stage": stage},
        **({"activation_checkpointing": {}} if recompute else {})}))
    run(program, "train", "--model", base, "--adapter", adapter, "--method", method, "--data", work / "train.txt",
        "--config", config, "--gpus", ranks, "--no-shuffle", "--steps", STEPS, "--seq-len", LENGTH,
        "--metrics", metrics, "--threads", 2, "--save", out, cache=work / "cache")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"]


def largest_difference(ours, theirs):
    """As a share of each tensor's largest element."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())[:4]
    return max(((a - theirs[name]).abs().max() / theirs[name].abs().max()).item()
               for name, a in ours.items())


def greedy(model, tokenizer, prompt, tokens):
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        made = model.generate(**inputs, do_sample=False, max_new_tokens=tokens,
                              pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(made[0], skip_special_tokens=True)


def compare(program, tool, work, number, family, config, options):
    base, adapter = work / family, work / f"adapter-{number}"
    if not base.exists():
        make_model(families()[family], base)
    make_adapter(base, adapter, config)
    # As the file has it: a model's own class of tokenizer may cut words otherwise.
    tokenizer = load_tokenizer(base)
    ids = tokenizer((work / "train.txt").read_text())["input_ids"] + [tokenizer.eos_token_id]
    before = {path: path.read_bytes() for path in sorted(base.glob("*.safetensors"))}
    frozen = base
    if options.get("method") == "qlora":
        frozen = work / f"rounded-{number}"
        rounded_to_nf4(base, frozen, tool)
    theirs, model = by_peft(frozen, adapter, ids)
    exact, exact_model = by_peft(frozen, adapter, ids, torch.float64)
    out = work / f"out-{number}"
    ours = by_zeroplan(program, base, adapter, work, out, **options)
    assert len(ours) == len(theirs) == STEPS
    found = {"losses": max(abs(a - b) / abs(b) for a, b in zip(ours, exact))}

    def saved_by(model, name):
        model.save_pretrained(work / f"{name}-{number}")
        made = load_file(work / f"{name}-{number}" / "adapter_model.safetensors")
        return {name: tensor.double() for name, tensor in made.items()}

    saved = {name: tensor.double()
             for name, tensor in load_file(out / "adapter_model.safetensors").items()}
    of_exact = saved_by(exact_model, "exact")
    found["adapters"] = largest_difference(saved, of_exact)
    rounding = largest_difference(saved_by(model, "peft"), of_exact)

    def with_saved(folder):
        plain = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
        return peft.PeftModel.from_pretrained(plain, out).eval()

    loaded = with_saved(frozen)
    rows = torch.tensor(ids[:64])[None]
    with torch.no_grad():
        a, b = loaded(input_ids=rows).logits, exact_model(input_ids=rows).logits
    found["logits"] = ((a - b).abs().max() / b.abs().max()).item()

    merged = work / f"merged-{number}"
    run(program, "merge", out, "--model", base, "-o", merged, "--save-dtype", "fp32",
        cache=work / "cache")
    whole = with_saved(base).merge_and_unload()
    held = {name: tensor for name, tensor in whole.state_dict().items()}
    ours_merged = transformers.AutoModelForCausalLM.from_pretrained(merged,
                                                                    torch_dtype=torch.float32)
    found["merged"] = largest_difference(dict(ours_merged.state_dict()), held)

    texts = [run(program, "generate", base, "--adapter", out, "--prompt", "The step program",
                 "--tokens", 24, "--temperature", 0, "--dtype", "fp32", *more,
                 cache=work / "cache") for more in ([], ["--no-cache"])]
    expected = greedy(ours_merged.eval(), tokenizer, "The step program", 24) + "\n"
    good = all(value < BOUND for value in found.values()) and texts == [expected, expected]
    good = good and all(path.read_bytes() == data for path, data in before.items())
    words = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
    print(f"{family} {config} {options}: {theirs[0]:.4f} -> {theirs[-1]:.4f}; largest differences: "
          f"{words} (PEFT's own rounding {rounding:.1e}); text {'same' if texts == [expected, expected] else 'OTHER'}: "
          f"{'agree' if good else 'DIFFER'}", flush=True)
    return good


def refusal(program, adapter, base, out):
    """What `merge` says; None where it merges."""
    done = subprocess.run([program, "merge", adapter, "--model", base, "-o", out, "--save-dtype", "fp32"],
                          capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    return done.stderr if done.returncode else None


def compare_forms(program, work):
    base, good = work / "llama-forms", []
    make_model(families()["llama"], base)

    def report(what, ok, words):
        print(f"{what}: {words}: {'agree' if ok else 'DIFFER'}", flush=True)
        good.append(ok)

    for number, config in enumerate(MERGED):
        adapter, out = work / f"form-{number}", work / f"form-merged-{number}"
        make_adapter(base, adapter, config)
        plain = transformers.AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32)
        theirs = peft.PeftModel.from_pretrained(plain, adapter).merge_and_unload().state_dict()
        said = refusal(program, adapter, base, out)
        if said is not None:
            report(config, False, said.strip())
            continue
        ours = transformers.AutoModelForCausalLM.from_pretrained(out, torch_dtype=torch.float32)
        untuned = transformers.AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32)
        apart = largest_difference(dict(ours.state_dict()), theirs)
        changed = largest_difference(dict(ours.state_dict()), dict(untuned.state_dict()))
        report(config, apart < BOUND < 1e-3 < changed, f"merged, {apart:.1e} apart of {changed:.1e}")
    for number, (key, config) in enumerate(REFUSED):
        adapter = work / f"refused-{number}"
        make_adapter(base, adapter, config)
        said = refusal(program, adapter, base, work / "none")
        report(config, said is not None and f": {key}: " in said, f"refused by {key}")
    for key, value in SAID:
        adapter = work / f"said-{key}-{value if isinstance(value, str) else ''}"
        make_adapter(base, adapter, QV)
        file = adapter / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
        said = refusal(program, adapter, base, work / "none")
        report({key: value}, said is not None and f": {key}: " in said, f"refused by {key}")
    return all(good)


def compare_bitsandbytes(program, work):
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as missing:
        print(f"QLoRA beside bitsandbytes skipped: {missing}")
        return True
    base, adapter, out = work / "wide", work / "adapter-wide", work / "out-wide"
    shape = families()["llama"]
    shape.update(WIDE)
    make_model(shape, base)
    make_adapter(base, adapter, ALL)
    ids = load_tokenizer(base)((work / "train.txt").read_text())["input_ids"]
    kept = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                           bnb_4bit_use_double_quant=True,
                                           bnb_4bit_compute_dtype=torch.float32)
    theirs, _ = by_peft(base, adapter, ids, quantization_config=kept, device_map={"": "cpu"})
    unrounded, _ = by_peft(base, adapter, ids)
    ours = by_zeroplan(program, base, adapter, work, out, method="qlora")
    apart = max(abs(a - b) for a, b in zip(ours, theirs))
    rounding = max(abs(a - b) for a, b in zip(unrounded, theirs))
    good = apart < 0.1 * rounding
    print(f"QLoRA beside bitsandbytes: {theirs[0]:.4f} -> {theirs[-1]:.4f}; losses {apart:.1e} apart; "
          f"of the unrounded model {rounding:.1e}: {'agree' if good else 'DIFFER'}", flush=True)
    return good


def main():
    program, tool = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "train.txt").write_text("\n".join(corpus())[:40_000])
        good = [compare(program, tool, work, number, *case) for number, case in enumerate(CASES)]
        good.append(compare_forms(program, work))
        good.append(compare_bitsandbytes(program, work))
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
