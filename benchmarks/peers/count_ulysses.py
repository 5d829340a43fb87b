#!/usr/bin/env python3
"""Counts what DeepSpeed's Ulysses for transformers' models has on a GPU around attention.

    DS_ACCELERATOR=cpu python3 benchmarks/peers/count_ulysses.py > tests/data/runtimes/ulysses_counts.jsonl

Runs UlyssesSPAttentionHF on the CPU as one rank, with collectives that do nothing and an attention
that keeps its inputs and its output. Prints for each row bytes beside what there was when the layer
called it with queries, keys and values, which are freed when it returns: the most forward; what is
there while attention runs; what is left; and, backward, the most until attention's backward, what is
there then, and the most after it.

Packages: torch, deepspeed, einops, transformers.
"""

import json
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost",
                  MASTER_PORT="29997")

import torch
from count_code import BF16, Trace

import deepspeed.comm as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

TOKENS, HEAD = 64, 16  # of a rank's part of a sequence; columns of a head
ROWS = ((2, 4, 4, 1), (4, 8, 8, 1), (4, 8, 2, 1), (8, 8, 8, 1), (8, 8, 2, 1), (2, 4, 2, 2))


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, trace, q, k, v):
        trace.mark("attention")
        ctx.trace = trace
        out = torch.empty(q.shape, dtype=q.dtype)
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        ctx.trace.mark("attention's backward")
        grads = tuple(torch.empty_like(t) for t in ctx.saved_tensors[:3])
        ctx.trace.mark("after")
        return (None, *grads)


class Loss(torch.autograd.Function):
    """Backward begins with a gradient that nothing else holds."""

    @staticmethod
    def forward(ctx, trace, out):
        ctx.trace, ctx.shape = trace, out.shape
        return torch.zeros((), requires_grad=True)

    @staticmethod
    def backward(ctx, _):
        grad = torch.empty(ctx.shape, dtype=BF16)
        ctx.trace.mark("backward")
        return None, grad


def events_of(ranks, heads, kv_heads, batch):
    dist.get_world_size = lambda group=None: ranks
    dist.get_rank = lambda group=None: 0
    dist.all_gather = lambda parts, part, group=None: [p.copy_(part) for p in parts]
    dist.all_to_all_single = lambda output, given, group=None: None
    trace = Trace({})

    def attention(module, q, k, v, mask, **_):
        return Attention.apply(trace, *(t.transpose(1, 2) for t in (q, k, v))), None

    exchange = UlyssesSPAttentionHF(
        attention, batch, heads, HEAD, kv_heads, 1, process_group=None, seq_length_is_variable=True)
    positions = torch.zeros(batch, TOKENS, dtype=torch.long)
    given = [torch.empty(batch, TOKENS, n, HEAD, dtype=BF16, requires_grad=True)
             for n in (heads, kv_heads, kv_heads)]
    with trace:
        q, k, v = (t.transpose(1, 2) * 1 for t in given)
        trace.mark("begin")
        out = exchange(torch.nn.Module(), q, k, v, None, position_ids=positions)[0]
        del q, k, v
        trace.mark("returned")
        loss = Loss.apply(trace, out)
        del out
        loss.backward()
    return trace.events


def row_of(ranks, heads, kv_heads, batch):
    sizes, live, most, at, marks = {}, 0, {}, {}, "before"
    for event in events_of(ranks, heads, kv_heads, batch):
        if event[0] == "mark":
            marks = event[1]
            at[marks] = most[marks] = live
        elif event[0] == "new":
            sizes[event[1]] = event[2] if event[2] > 8 else 0  # the loss is of this script
            live += sizes[event[1]]
        else:
            live -= sizes[event[1]]
        most[marks] = max(most.get(marks, 0), live)
    begin = at["begin"]
    return {
        "ranks": ranks, "heads": heads, "kv_heads": kv_heads, "batch": batch, "tokens": TOKENS,
        "head_size": HEAD, "forward": max(most["begin"], most["attention"]) - begin,
        "attention": at["attention"] - begin, "returned": at["returned"] - begin,
        "backward": most["backward"] - begin,
        "attention_backward": at["attention's backward"] - begin, "after": most["after"] - begin,
    }


for row in ROWS:
    print(json.dumps(row_of(*row)))
