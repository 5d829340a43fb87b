#!/usr/bin/env python3
"""Counts, as count_code.py does, parts of layers that only models have that zeroplan does not train: Gemma's
norms, bounded scores and logits, matmuls that make several things at once, experts.

    python count_planned.py > ../../tests/data/runtimes/planned_counts.jsonl
    python4 count_planned.py >> ../../tests/data/runtimes/planned_counts.jsonl

The second is a Python with transformers 4, whose experts are linear modules in a loop: two and three of them, each with
as many tokens, so that their difference is one. "frozen": parts below adapters, without gradients of their own.

Matmuls are left out of what experts move and launch. Elements besides those of count_code.py: h rows for experts (tokens x experts a token) x hidden, f the same x
their width, c the rows, x tokens x experts, p tokens x columns of queries, keys and values.
"""

import json
import types

import torch

import count_code as base
from count_code import BATCH, BF16, FFN, HEAD, HEADS, HIDDEN, KV_HEADS, SEQ, TOKENS, VOCAB, count, heads, tensor

EXPERTS, EXPERTS_PER_TOKEN = 5, 3
ROWS = TOKENS * EXPERTS_PER_TOKEN
QKV = TOKENS * (HEADS + 2 * KV_HEADS) * HEAD


def gemma_parts(autocast):
    from transformers.activations import ACT2FN
    from transformers.loss.loss_utils import ForCausalLMLoss
    from transformers.models.gemma2 import modeling_gemma2 as gemma2

    dtype = torch.float32 if autocast else BF16
    norm = gemma2.Gemma2RMSNorm(HIDDEN).to(dtype)
    yield "rms_norm", count(lambda held: norm(held.pop()), [tensor(BATCH, SEQ, HIDDEN, dtype=dtype)], [norm.weight], autocast)
    # Behind a product, whose result is in 16 bit.
    yield "post_norm", count(lambda held: norm(held.pop()), [tensor(BATCH, SEQ, HIDDEN)], [norm.weight], autocast)
    head_norm = gemma2.Gemma2RMSNorm(HEAD).to(dtype)
    yield "head_norm", count(lambda held: head_norm(held.pop().transpose(1, 2)), [heads(BF16)], [head_norm.weight], autocast)

    def geglu(held):
        gate = ACT2FN["gelu_pytorch_tanh"](held.pop(0))
        return gate * held.pop()

    yield "gated", count(geglu, [tensor(BATCH, SEQ, FFN)] * 2, (), autocast)
    mask = torch.zeros(1, 1, SEQ, SEQ, dtype=dtype)
    module = types.SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=True, head_dim=HEAD)

    def bounded(held):
        q, k, v = (x.transpose(1, 2) for x in held)
        held.clear()
        out, weights = gemma2.eager_attention_forward(module, q, k, v, mask, softcap=50.0)
        return out

    yield "attention_bounded", count(bounded, [heads(BF16), heads(BF16, True), heads(BF16, True)], (), autocast)
    labels = torch.randint(0, VOCAB, (BATCH, SEQ))

    def loss(held):
        logits = held.pop()
        logits = logits / 30.0
        logits = torch.tanh(logits)
        logits = logits * 30.0
        return ForCausalLMLoss(logits, labels, VOCAB, num_items_in_batch=torch.tensor(TOKENS))

    yield "loss_bounded", count(loss, [tensor(BATCH, SEQ, VOCAB)], (), autocast)


def phi_parts(autocast):
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.phi3 import modeling_phi3 as phi3

    dtype = torch.float32 if autocast else BF16

    def gate_up(held):
        gate, up = held.pop().chunk(2, dim=-1)
        return up * torch.nn.functional.silu(gate)

    yield "gated_of_one", count(gate_up, [tensor(BATCH, SEQ, 2 * FFN)], (), autocast)
    config = phi3.Phi3Config(hidden_size=HEADS * HEAD, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, pad_token_id=0)
    rotary = phi3.Phi3RotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1, dtype=dtype), torch.arange(SEQ)[None])

    def rotate(held):
        qkv = held.pop()
        at = HEADS * HEAD
        q = qkv[..., :at].view(BATCH, SEQ, -1, HEAD).transpose(1, 2)
        k = qkv[..., at:at + KV_HEADS * HEAD].view(BATCH, SEQ, -1, HEAD).transpose(1, 2)
        v = qkv[..., at + KV_HEADS * HEAD:].view(BATCH, SEQ, -1, HEAD).transpose(1, 2)
        q, k = phi3.apply_rotary_pos_emb(q, k, cos, sin)
        return q.to(BF16), k.to(BF16), v

    yield "rotary_of_one", count(rotate, [tensor(BATCH, SEQ, (HEADS + 2 * KV_HEADS) * HEAD)], (), autocast,
                                 {"q": TOKENS * HEADS * HEAD})


def frozen(module):
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def frozen_parts():
    from transformers.models.gemma2 import modeling_gemma2 as gemma2

    for name, heads_of, make in (("rms_norm", HIDDEN, lambda: tensor(BATCH, SEQ, HIDDEN)), ("head_norm", HEAD, lambda: heads(BF16).transpose(1, 2))):
        norm = frozen(gemma2.Gemma2RMSNorm(heads_of).to(BF16))
        yield name, count(lambda held: norm(held.pop()), [make()], ())
    yield from expert_parts(False, below_adapters=True)


def module_parts():
    """A sparse block of transformers 4, whose router gives each expert as many tokens."""
    from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3

    for experts in (2, 3):
        def choose(shares, k, dim=-1, experts=experts):
            chosen = (torch.arange(shares.shape[0]) % experts)[:, None]
            return shares.gather(1, chosen), chosen

        rows = TOKENS // experts
        extra = {"h": rows * HIDDEN, "f": rows * FFN, "c": rows, "x": TOKENS * experts}
        config = qwen3.Qwen3MoeConfig(hidden_size=HIDDEN, num_experts_per_tok=1, moe_intermediate_size=FFN, num_experts=experts,
                                      norm_topk_prob=False)
        for below_adapters in (False, True):
            block = qwen3.Qwen3MoeSparseMoeBlock(config).to(BF16)
            if below_adapters:
                frozen(block)
            topk, torch.topk = torch.topk, choose
            summary = without_products()
            weights = () if below_adapters else list(block.parameters())
            row = count(lambda held: block(held.pop())[0], [tensor(BATCH, SEQ, HIDDEN)], weights, False, extra)
            base.summary, torch.topk = summary, topk
            yield {"experts": experts, "frozen": below_adapters, **row}


def expert_parts(autocast, below_adapters=False):
    from transformers.models.mixtral import modeling_mixtral as mixtral
    from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3

    dtype = torch.float32 if autocast else BF16
    extra = {"h": ROWS * HIDDEN, "f": ROWS * FFN, "c": ROWS, "x": TOKENS * EXPERTS}
    shape = dict(hidden_size=HIDDEN, num_experts_per_tok=EXPERTS_PER_TOKEN)
    configs = {
        "experts": (mixtral.MixtralSparseMoeBlock, mixtral.MixtralConfig(**shape, intermediate_size=FFN, num_local_experts=EXPERTS)),
        "experts_plain_shares": (qwen3.Qwen3MoeSparseMoeBlock,
                                 qwen3.Qwen3MoeConfig(**shape, moe_intermediate_size=FFN, num_experts=EXPERTS)),
    }
    for name, (cls, config) in configs.items():
        config._experts_implementation = "grouped_mm"
        block = cls(config).to(dtype)
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter)
        weights = () if below_adapters else list(block.parameters())
        if below_adapters:
            frozen(block)
        summary = without_products()
        row = count(lambda held: block(held.pop()), [tensor(BATCH, SEQ, HIDDEN, dtype=dtype)], weights, autocast, extra)
        base.summary = summary
        yield name, row


def without_products():
    """Kernels that multiply are products' own time, not their part's."""
    summary = base.summary
    base.summary = lambda way, rows: summary(way, [row for row in rows if "mm." not in row[0]])
    return summary


def main():
    import transformers

    if transformers.__version__ < "5":
        for row in module_parts():
            print(json.dumps({"style": "hf4", "part": "expert_modules", "autocast_fp32": False, **row}), flush=True)
        return
    for parts in (gemma_parts, phi_parts, expert_parts):
        for autocast in (False, True):
            for name, row in parts(autocast):
                print(json.dumps({"style": "hf", "part": name, "autocast_fp32": autocast, **row}), flush=True)
    for name, row in frozen_parts():
        print(json.dumps({"style": "hf", "part": name, "autocast_fp32": False, "frozen": True, **row}), flush=True)


if __name__ == "__main__":
    main()
