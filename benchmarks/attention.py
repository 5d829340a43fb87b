#!/usr/bin/env python3
"""Causal attention in bf16 on one GPU, forward and backward: our own kernels, those that cuDNN has for zeroplan,
and PyTorch's backends in turns: FlashAttention 2 and cuDNN over whole rows, varlen_attn over packed documents.

    python3 benchmarks/attention.py --repeat 3

Prints a line a shape: milliseconds, and TFLOP/s that count the causal half (backward: 2.5 times the forward pass).
Tensors are random; times are medians of launches, and of the repetitions.
"""
import argparse
import itertools
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = ROOT / "build" / "release" / "benchmarks" / "cuda_kernels_benchmark"
SHAPES = [(8, 2048, 32, 8, 64), (4, 4096, 32, 8, 64), (1, 16384, 32, 8, 64), (8, 2048, 32, 8, 128),
          (2, 4096, 32, 8, 128), (1, 16384, 32, 8, 128), (4, 4096, 32, 8, 96), (4, 4096, 16, 4, 256)]
# Rows full of documents of about so many tokens.
PACKED = [((1, 16384, 32, 32, 64), 181), ((1, 16384, 32, 32, 128), 181)]
PACKED += [(shape, median) for shape in ((8, 2048, 32, 8, 64), (4, 4096, 32, 8, 128), (4, 4096, 12, 2, 128))
           for median in (60, 181, 800)]


def document_lengths(total, median):
    draw, lengths = random.Random(1), []
    while sum(lengths) < total:
        lengths.append(min(total - sum(lengths), max(20, int(draw.lognormvariate(math.log(median), 0.6)))))
    return lengths


def median_ms(call, count=12):
    for _ in range(3):
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def both_passes(tensors, forward):
    passed = median_ms(forward)
    out = forward()
    gradient = torch.randn_like(out)

    def backward():
        for tensor in tensors:
            tensor.grad = None
        out.backward(gradient, retain_graph=True)

    return passed, median_ms(backward)


def draw(*size):
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def sdpa(shape, backend):
    b, t, h, g, d = shape
    q, k, v = draw(b, h, t, d), draw(b, g, t, d), draw(b, g, t, d)
    with sdpa_kernel(backend):
        return both_passes((q, k, v),
                           lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


def varlen(shape, lengths):
    from torch.nn.attention.varlen import varlen_attn
    import inspect
    b, t, h, g, d = shape
    q, k, v = draw(b * t, h, d), draw(b * t, g, d), draw(b * t, g, d)
    ends = torch.tensor([0, *itertools.accumulate(lengths * b)], device="cuda", dtype=torch.int32)
    more = ({"is_causal": True} if "is_causal" in inspect.signature(varlen_attn).parameters else
            {"window_size": (-1, 0)})
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        more["enable_gqa"] = g < h
    return both_passes((q, k, v), lambda: varlen_attn(q, k, v, ends, ends, max(lengths), max(lengths), **more))


def zeroplan(binary, launches, own, deterministic=False):
    with tempfile.TemporaryDirectory() as folder:
        shapes, report = pathlib.Path(folder) / "shapes.json", pathlib.Path(folder) / "report.json"
        shapes.write_text(json.dumps(launches))
        env = dict(os.environ, ZEROPLAN_ATTENTION="own") if own else dict(os.environ)
        command = [str(binary), "--json", str(report), "--attention", str(shapes)]
        subprocess.run(command + ["--deterministic"] * deterministic, env=env, check=True,
                       stdout=subprocess.DEVNULL)
        times = [row["microseconds"] / 1e3 for row in json.loads(report.read_text())["kernels"]]
    return list(zip(times[::2], times[1::2], strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--documents", action="store_true", help="packed documents alone")
    parser.add_argument("--binary", default=BINARY, help="cuda_kernels_benchmark")
    args = parser.parse_args()
    documents = [document_lengths(shape[1], median) for shape, median in PACKED]
    whole = [] if args.documents else SHAPES
    shapes = whole + [shape for shape, _ in PACKED]
    lengths_of = [None] * len(whole) + documents
    launches = [{"dims": shape} | ({"lengths": lengths} if lengths else {})
                for shape, lengths in zip(shapes, lengths_of, strict=True)]
    times = [{} for _ in launches]

    def add(i, name, passes):
        times[i].setdefault(name, []).append(passes)

    for repetition in range(args.repeat):
        ours = [("own", True, False), ("own, deterministic", True, True), ("zeroplan without own", False, False),
                ("the same, deterministic", False, True)]
        for name, own, deterministic in ours if repetition % 2 == 0 else ours[::-1]:
            for i, passes in enumerate(zeroplan(args.binary, launches, own, deterministic)):
                add(i, name, passes)
        for i, (shape, lengths) in enumerate(zip(shapes, lengths_of, strict=True)):
            if lengths:
                add(i, "varlen_attn", varlen(shape, lengths))
                continue
            for name, backend in (("FlashAttention 2", SDPBackend.FLASH_ATTENTION),
                                  ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
                add(i, name, sdpa(shape, backend))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for shape, lengths, found in zip(shapes, lengths_of, times, strict=True):
        b, t, h, _, d = shape
        pairs = b * (sum(n * n for n in lengths) if lengths else t * t)
        flops = 2 * pairs * h * d
        print("x".join(map(str, shape)) + (f", rows of {len(lengths)} documents, the longest of {max(lengths)} tokens"
                                           if lengths else ""))
        for name, passes in found.items():
            forward, backward = (statistics.median(p[i] for p in passes) for i in (0, 1))
            print(f"  {name:28} {forward:8.3f} ms {flops / forward / 1e9:6.0f}   "
                  f"{backward:8.3f} ms {2.5 * flops / backward / 1e9:6.0f} TFLOP/s")


if __name__ == "__main__":
    main()
