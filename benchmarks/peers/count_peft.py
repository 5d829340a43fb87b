#!/usr/bin/env python3
"""Counts what PEFT's adapters make, keep for backward and launch, as count_code.py does it for modelling code.

Runs PEFT's own LoRA layers over torch.nn.Linear and over bitsandbytes' Linear4bit on the CPU, tiny; frozen norms
of transformers' models; and the parts of a model that prepare_model_for_kbit_training has cast to fp32. A row a
part, words and elements as count_code.py has them, and

    y     tokens x columns of the adapted linear's output
    b     tokens x rank

Then whole models of two and three layers: bytes that one layer keeps for backward, and operations of a layer
less those of the frozen model without adapters.

    python count_peft.py > tests/data/runtimes/peft_counts.jsonl

Packages: torch, transformers, peft, bitsandbytes. Dropout is native_dropout, as on a GPU, with a mask of a byte an
element. What 4-bit products do differs on a GPU: there the weight is made in 16 bit and then multiplied with
(bitsandbytes' backends/cuda/ops.py), and that is in no row.
"""

import json
import re
import sys
import warnings
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import count_code as code

warnings.filterwarnings("ignore")
BF16 = torch.bfloat16
RANK = 13  # so that no size of an adapter is one of another tensor
KINDS = [("lora", "bf16", False), ("lora", "fp32", True), ("qlora", "bf16", True), ("qlora", "fp32", True)]


def gpu_dropout(x, p=0.5, training=True, inplace=False):
    return torch.native_dropout(x, p, True)[0] if p > 0 and training else x


def four_bit(linear):
    import bitsandbytes as bnb
    made = bnb.nn.Linear4bit(linear.in_features, linear.out_features, bias=False, compute_dtype=BF16, quant_type="nf4",
                             compress_statistics=True, device="cpu")
    made.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4",
                                    compress_statistics=True, module=made).to("cpu")
    return made


class Holder(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return self.linear(x)


def adapted(method, adapters, dropout):
    from peft import LoraConfig, get_peft_model
    linear = torch.nn.Linear(code.HIDDEN, code.FFN, bias=False).to(BF16)
    holder = Holder(four_bit(linear) if method == "qlora" else linear)
    holder.is_loaded_in_4bit = method == "qlora"
    model = get_peft_model(holder, LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=dropout, target_modules=["linear"]))
    if adapters == "bf16":
        for param in model.parameters():
            if param.requires_grad:
                param.data = param.data.to(BF16)
    return model.train().base_model.model.linear


def row_of(layer, dtype, autocast):
    weights = [layer.lora_B["default"].weight, layer.lora_A["default"].weight]
    sizes = {"b": code.TOKENS * RANK}
    row = code.count(lambda held: layer(held.pop()), [code.tensor(code.BATCH, code.SEQ, code.HIDDEN, dtype=dtype)], weights,
                     autocast, sizes)
    for key in ("forward", "backward", "forward_moves", "backward_moves"):
        row[key] = re.sub(r"(\d)f\b", r"\1y", row[key])
    return row


def linear_rows():
    for method, adapters, autocast in KINDS:
        for dropout in (0, 0.05):
            layer = adapted(method, adapters, dropout)
            yield {"part": "adapted_linear", "method": method, "adapters": adapters, "autocast": autocast,
                   "dropout": dropout, **row_of(layer, BF16, autocast)}
    for dropout in (0, 0.05):
        layer = adapted("qlora", "fp32", dropout)
        yield {"part": "adapted_linear", "method": "qlora", "kbit": True, "adapters": "fp32", "autocast": True,
               "dropout": dropout, **row_of(layer, torch.float32, True)}


def frozen_rows():
    from transformers import LlamaConfig
    from transformers.activations import ACT2FN
    from transformers.models.llama import modeling_llama as llama
    for dtype in (BF16, torch.float32):
        said = {"params": "bf16" if dtype == BF16 else "fp32", "frozen": True}
        shapes = [("rms_norm", llama.LlamaRMSNorm(code.HIDDEN), code.tensor(code.BATCH, code.SEQ, code.HIDDEN, dtype=dtype)),
                  ("head_norm", llama.LlamaRMSNorm(code.HEAD), code.heads(dtype)),
                  ("layer_norm", torch.nn.LayerNorm(code.HIDDEN), code.tensor(code.BATCH, code.SEQ, code.HIDDEN, dtype=dtype))]
        for name, norm, x in shapes:
            norm.to(dtype).requires_grad_(False)
            yield {"part": name, **said, **code.count(lambda held: norm(held.pop()), [x], (), dtype != BF16)}
    said = {"kbit": True}

    def swiglu(held):
        gate = ACT2FN["silu"](held.pop(0))
        return gate * held.pop()

    fp32 = torch.float32
    wide = code.tensor(code.BATCH, code.SEQ, code.FFN, dtype=fp32)
    yield {"part": "swiglu", **said, **code.count(swiglu, [wide, wide.clone()], (), True)}
    config = LlamaConfig(hidden_size=code.HIDDEN, num_attention_heads=code.HEADS, num_key_value_heads=code.KV_HEADS,
                         head_dim=code.HEAD)
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=fp32), torch.arange(code.SEQ)[None])

    def rotate(held):
        q, k = (x.transpose(1, 2) for x in held)
        held.clear()
        q, k = llama.apply_rotary_pos_emb(q, k, cos, sin)
        return q.to(BF16), k.to(BF16)

    row = code.count(rotate, [code.heads(fp32), code.heads(fp32, True)], (), True)
    row["forward"] = row["forward"].removeprefix("a1k b1k ")  # the tables, which all layers share
    yield {"part": "rotary", **said, **row}

    def add(held):
        residual, x = held
        held.clear()
        return residual + x

    both = [code.tensor(code.BATCH, code.SEQ, code.HIDDEN, dtype=fp32) for _ in range(2)]
    yield {"part": "add", **said, **code.count(add, both, (), True)}


# ---- whole models ----

SHAPE = dict(vocab_size=512, hidden_size=256, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
MODEL_TOKENS, MODEL_RANK = 128, 8


def model_of(layers, method, adapters, autocast, dropout, targets="all-linear", kbit=False):
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, attn_implementation="sdpa", use_cache=False, **SHAPE)).to(BF16)
    if method == "frozen":
        model.requires_grad_(False)
        model.enable_input_require_grads()
        return model
    if method == "qlora":
        for name, module in list(model.named_modules()):
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                parent, _, last = name.rpartition(".")
                setattr(model.get_submodule(parent), last, four_bit(module))
        model.is_loaded_in_4bit = model.is_quantized = True
    if kbit:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = get_peft_model(model, LoraConfig(r=MODEL_RANK, lora_alpha=2 * MODEL_RANK, target_modules=targets,
                                             lora_dropout=dropout, task_type="CAUSAL_LM"))
    if adapters == "bf16":
        for param in model.parameters():
            if param.requires_grad:
                param.data = param.data.to(BF16)
    return model.train()


def hidden_states(model, autocast):
    inner = model.model.model if hasattr(model, "peft_config") else model.model
    with torch.autocast("cpu", BF16, enabled=autocast):
        return inner(input_ids=torch.arange(MODEL_TOKENS)[None]).last_hidden_state


def kept(layers, **how):
    model = model_of(layers, **how)
    known = {x.untyped_storage().data_ptr() for x in [*model.parameters(), *model.buffers()]}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = hidden_states(model, how["autocast"])
    sizes = sum(storage.nbytes() for storage in storages.values())
    del out
    return sizes


class Operations(TorchDispatchMode):
    MAKE_NOTHING = re.compile(r"empty|view|detach|expand|permute|slice\.|select|unsqueeze|squeeze|alias|as_strided|::t$|transpose|split")

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name == "_to_copy":
            name = f"to {str(out.dtype)[6:]}"
        if not func.is_view and not self.MAKE_NOTHING.search(func._schema.name):
            self.counts[name] += 1
        return out


def operations(layers, **how):
    model = model_of(layers, **how)
    with Operations() as forward:
        out = hidden_states(model, how["autocast"])
    with Operations() as backward:
        out.backward(torch.ones_like(out))
    return forward.counts, backward.counts


def of_a_layer(**how):
    two, three = operations(2, **how), operations(3, **how)
    return [{k: b[k] - a[k] for k in sorted(set(a) | set(b)) if b[k] != a[k]} for a, b in zip(two, three)]


def beside(ops, base):
    return {k: ops.get(k, 0) - base.get(k, 0) for k in sorted(set(ops) | set(base)) if ops.get(k, 0) != base.get(k, 0)}


def model_rows():
    frozen = of_a_layer(method="frozen", adapters=None, autocast=False, dropout=0)
    hows = [dict(method=m, adapters=a, autocast=c) for m, a, c in KINDS] + [
        dict(method="qlora", adapters="fp32", autocast=True, kbit=True),
        dict(method="lora", adapters="fp32", autocast=True, targets=["q_proj", "v_proj"])]
    for how in hows:
        for dropout in (0, 0.05):
            how = {**how, "dropout": dropout}
            forward, backward = of_a_layer(**how)
            yield {"part": "layer", **how, "tokens": MODEL_TOKENS, "rank": MODEL_RANK, **SHAPE,
                   "kept_bytes": kept(3, **how) - kept(2, **how),
                   "forward_operations": beside(forward, frozen[0]), "backward_operations": beside(backward, frozen[1])}


def main():
    from importlib.metadata import version
    torch.nn.functional.dropout = gpu_dropout
    # PEFT's 4-bit layers ask for the GPU's autocast, and cast their input where it is off.
    asks = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda device="cpu": asks(device)
    versions = {name: version(name) for name in ("torch", "transformers", "peft", "bitsandbytes")}
    print(json.dumps({"versions": versions}))
    for rows in (linear_rows, frozen_rows, model_rows):
        for row in rows():
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
