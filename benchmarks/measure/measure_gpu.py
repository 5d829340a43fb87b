#!/usr/bin/env python3
"""Rates of one GPU, as PyTorch's libraries reach them: matrix products, attention, copies.

    python3 benchmarks/measure/measure_gpu.py OUT.json

One JSON object: {"gpu", "torch", "gemm": [...], "attention": [...], "memory": [...], "pcie": [...],
"launch_seconds"}. Times are medians of CUDA-event timings on random data, in seconds. What hardware
profiles call measured comes from here; docs/cost-model.md says what is fitted and what held out.
"""
import json
import sys

import torch
import torch.nn.functional as F


def median_seconds(run, target=0.06, least=5):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    reps = max(least, min(200, int(target / max(begin.elapsed_time(end) * 1e-3, 1e-6))))
    inner = max(1, int(2e-4 / max(begin.elapsed_time(end) * 1e-3, 1e-6)))  # short kernels: several
    times = []
    for _ in range(reps):
        begin.record()
        for _ in range(inner):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / inner)
    times.sort()
    return times[len(times) // 2]


def gemm(dtype, kind, m, k, n):
    """forward: a[M,K] w[K,N]; data: dy[M,N] w^T; weight: a^T dy, as a layer of [K,N] needs them."""
    a = torch.randn(m, k, device="cuda", dtype=dtype)
    w = torch.randn(k, n, device="cuda", dtype=dtype)
    dy = torch.randn(m, n, device="cuda", dtype=dtype)
    if kind == "forward":
        return median_seconds(lambda: torch.mm(a, w))
    if kind == "data":
        return median_seconds(lambda: torch.mm(dy, w.t()))
    return median_seconds(lambda: torch.mm(a.t(), dy))


def gemms():
    rows = []
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

    def add(dtype, kind, m, k, n):
        rows.append({"dtype": names[dtype], "kind": kind, "m": m, "k": k, "n": n,
                     "seconds": gemm(dtype, kind, m, k, n)})

    for h in (768, 1280, 1600, 2560, 4096, 5120):
        for m in (1024, 2048, 4096, 8192, 10240, 16384, 32768):
            for k, n in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)):
                for kind in ("forward", "data", "weight"):
                    add(torch.bfloat16, kind, m, k, n)
    for h in (768, 1600, 4096):
        for m in (2048, 8192, 16384):
            for kind in ("forward", "data", "weight"):
                add(torch.bfloat16, kind, m, h, 50304)
    for n in (1024, 2048, 4096, 8192, 16384):
        add(torch.bfloat16, "forward", n, n, n)
        add(torch.float16, "forward", n, n, n)
    for n in (1024, 4096, 8192):
        add(torch.float32, "forward", n, n, n)
    return rows


def attention():
    rows = []
    shapes = [(1, 12, 1024, 64), (4, 12, 1024, 64), (16, 12, 1024, 64), (32, 12, 1024, 64),
              (4, 25, 1024, 64), (16, 25, 1024, 64), (8, 20, 1024, 64),
              (1, 32, 1024, 128), (4, 32, 1024, 128), (8, 32, 1024, 128), (10, 32, 1024, 128),
              (16, 32, 1024, 128), (8, 32, 1024, 80), (1, 32, 2048, 128), (4, 32, 2048, 128),
              (8, 32, 2048, 128), (1, 32, 4096, 128), (4, 32, 4096, 128), (2, 16, 8192, 128),
              (8, 16, 2048, 64), (4, 16, 4096, 64), (16, 12, 512, 64), (16, 32, 512, 128),
              (1, 32, 65536, 64), (1, 32, 16384, 64), (1, 32, 65536, 128), (1, 32, 16384, 128)]
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for b, h, t, d in shapes:
        # As the step program lays them out: one [B, T, 3, H, D] tensor, seen as [B, H, T, D].
        qkv = torch.randn(b, t, 3, h, d, device="cuda", dtype=torch.bfloat16)
        q, k, v = (qkv[:, :, i].transpose(1, 2).detach().requires_grad_() for i in range(3))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            grad = torch.randn_like(out)
            with torch.no_grad():
                forward = median_seconds(
                    lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
            backward = median_seconds(
                lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
        rows.append({"batch": b, "heads": h, "seq": t, "head_dim": d,
                     "forward_seconds": forward, "backward_seconds": backward})
    return rows


def memory():
    """Device copies and a three-stream kernel by bytes touched (read plus written)."""
    rows = []
    for mib in (1, 4, 16, 64, 128, 256, 512, 1024, 2048):
        n = mib * 2**20 // 2
        # A ring of buffers larger than the L2 cache, so that small sizes come from memory too.
        ring = max(2, 512 // mib)
        src = [torch.randn(n, device="cuda", dtype=torch.bfloat16) for _ in range(ring)]
        dst = [torch.empty_like(src[0]) for _ in range(ring)]
        at = [0]

        def copy():
            at[0] = (at[0] + 1) % ring
            dst[at[0]].copy_(src[at[0]])

        def add():
            at[0] = (at[0] + 1) % ring
            torch.add(src[at[0]], src[at[0] - 1], out=dst[at[0]])

        rows.append({"op": "copy", "bytes": 4 * n, "seconds": median_seconds(copy)})
        rows.append({"op": "add", "bytes": 6 * n, "seconds": median_seconds(add)})
    return rows


def pcie():
    rows = []
    up, down = torch.cuda.Stream(), torch.cuda.Stream()
    for mib in (1, 4, 16, 64, 256, 1024):
        n = mib * 2**20
        host = [torch.empty(n, dtype=torch.uint8).pin_memory() for _ in range(2)]
        device = [torch.empty(n, dtype=torch.uint8, device="cuda") for _ in range(2)]

        def both():
            now = torch.cuda.current_stream()
            up.wait_stream(now)
            down.wait_stream(now)
            with torch.cuda.stream(up):
                device[0].copy_(host[0], non_blocking=True)
            with torch.cuda.stream(down):
                host[1].copy_(device[1], non_blocking=True)
            now.wait_stream(up)
            now.wait_stream(down)

        rows.append({"bytes": n,
                     "to_device_seconds": median_seconds(
                         lambda: device[0].copy_(host[0], non_blocking=True)),
                     "from_device_seconds": median_seconds(
                         lambda: host[0].copy_(device[0], non_blocking=True)),
                     "both_seconds": median_seconds(both)})
    return rows


def launch():
    """Seconds from one tiny kernel to the next in a graph replay: what each kernel adds."""
    x = torch.zeros(32, device="cuda")
    for _ in range(3):
        x.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            x.add_(1)
    return median_seconds(graph.replay) / 1000


def main():
    torch.manual_seed(1)
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
              "launch_seconds": launch(), "memory": memory(), "pcie": pcie(),
              "attention": attention(), "gemm": gemms()}
    with open(sys.argv[1], "w") as out:
        json.dump(result, out, indent=0)
    print("measured", result["gpu"], len(result["gemm"]), "products")


main()
