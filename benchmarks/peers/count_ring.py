#!/usr/bin/env python3
"""Counts what PyTorch's ring attention (context_parallel) has on a GPU.

    python3 benchmarks/peers/count_ring.py > tests/data/runtimes/ring_counts.jsonl

Runs _templated_ring_attention and its backward on the CPU as the last of some ranks, with collectives
of the backend "fake". Kernels make what FlashAttention's make: backward the sum of dQ in fp32, and
where heads of keys are shared dK and dV of every query head. Prints for each row bytes beside the
queries, keys and values: the most forward, what is left; the most backward beside that and the
gradient, and what is left of it beside the gradients.

Packages: torch.
"""

import json
import os
import subprocess
import sys

ROWS = ((2, 8, 8), (3, 8, 2), (4, 8, 8), (8, 8, 2))
TOKENS, HEAD = 512, 16  # of a rank's part of a sequence; columns of a head


def count(ranks, heads, kv_heads):
    os.environ.update(RANK=str(ranks - 1), WORLD_SIZE=str(ranks), MASTER_ADDR="localhost",
                      MASTER_PORT="29996")
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor.experimental._context_parallel._attention as attention
    from count_code import BF16, Trace
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    class Tensors(Trace):
        def note(self, tensor, made=True):
            if isinstance(tensor, AsyncCollectiveTensor):  # it wraps another
                return None
            return super().note(tensor, made)

    dist.init_process_group(backend="fake", store=FakeStore(), rank=ranks - 1, world_size=ranks)

    def forward(q, k, v, is_causal=False, **_):
        return torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32)

    def backward(query, key, value, **_):
        grads = (torch.empty_like(key), torch.empty_like(value), torch.empty_like(query))
        sums = [torch.empty(query.shape, dtype=torch.float32),
                torch.empty(query.shape[:3], dtype=torch.float32)]
        if heads != kv_heads:
            whole = (*query.shape[:2], key.shape[2], HEAD)
            sums += [torch.empty(whole, dtype=BF16) for _ in range(2)]
        del sums
        return grads[2], grads[0], grads[1]

    trace = Tensors({})
    with trace:
        q, k, v = (torch.empty(1, TOKENS, n, HEAD, dtype=BF16).transpose(1, 2)
                   for n in (heads, kv_heads, kv_heads))
        trace.mark("forward")
        out, sums = attention._templated_ring_attention(
            dist.group.WORLD, 2, forward, q, k, v, is_causal=True)[:2]
        trace.mark("given")
        grad = torch.empty_like(out)
        trace.mark("backward")
        grads = attention._templated_ring_attention_backward(
            dist.group.WORLD, 2, backward, grad_out=grad, grad_out_name="grad", query=q, key=k,
            value=v, out=out, logsumexp=sums, is_causal=True)
        trace.mark("end")
    sizes, live, most, at, mark = {}, 0, {}, {}, "before"
    for event in trace.events:
        if event[0] == "mark":
            mark = event[1]
            at[mark] = live
        elif event[0] == "new":
            sizes[event[1]] = event[2]
            live += event[2]
        else:
            live -= sizes[event[1]]
        most[mark] = max(most.get(mark, 0), live)
    return {"ranks": ranks, "heads": heads, "kv_heads": kv_heads, "tokens": TOKENS,
            "head_size": HEAD, "forward": most["forward"] - at["forward"],
            "made": at["given"] - at["forward"], "backward": most["backward"] - at["backward"],
            "gradients": at["end"] - at["backward"]}


if len(sys.argv) > 1:
    print(json.dumps(count(*map(int, sys.argv[1:]))))
else:
    for row in ROWS:  # a process group each
        subprocess.run([sys.executable, __file__, *map(str, row)], check=True)
