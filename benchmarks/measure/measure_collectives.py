#!/usr/bin/env python3
"""NCCL collectives by size, copies of all GPUs of a host at once, and what overlap costs.

    python3 benchmarks/measure/measure_collectives.py OUT.json     (takes every GPU it sees)

One JSON object: {"gpu", "world_size", "collectives": [...], "pcie": [...], "overlap": [...]}, times
in seconds, medians of the slowest rank. bytes: what all ranks hold together (all-gather,
reduce-scatter), or each rank's whole input (all-reduce).
"""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def slowest_median(run, reps, world, inner=1):
    for _ in range(3):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(reps):
        torch.cuda.synchronize()
        dist.barrier()
        begin.record()
        for _ in range(inner):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / inner)
    slowest = torch.tensor(times, device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.median().item()


def collectives(rank, world):
    rows = []
    for kib in (16, 64, 256, 1024, 4096, 16384, 65536, 131072, 262144, 524288, 1048576):
        n = kib * 1024 // 2 // world * world
        whole = torch.randn(n, device="cuda").bfloat16()
        part = torch.empty(n // world, device="cuda", dtype=torch.bfloat16)
        inner = 20 if kib <= 4096 else 5 if kib <= 65536 else 2
        reps = 15
        ops = {"all_reduce": lambda: dist.all_reduce(whole),
               "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
               "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole)}
        for name, run in ops.items():
            rows.append({"op": name, "bytes": 2 * n, "seconds": slowest_median(run, reps, world, inner)})
            whole.normal_()
    return rows


def pcie(rank, world):
    n = 256 * 2**20
    host = [torch.empty(n, dtype=torch.uint8).pin_memory() for _ in range(2)]
    device = [torch.empty(n, dtype=torch.uint8, device="cuda") for _ in range(2)]
    up, down = torch.cuda.Stream(), torch.cuda.Stream()

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

    runs = {"to_device": lambda: device[0].copy_(host[0], non_blocking=True),
            "from_device": lambda: host[0].copy_(device[0], non_blocking=True), "both": both}
    return [{"direction": name, "bytes": n, "seconds": slowest_median(run, 10, world, 4)}
            for name, run in runs.items()]


def overlap(rank, world):
    """Products on one stream while a collective runs on another: seconds of each, alone and not."""
    rows = []
    comm = torch.cuda.Stream()
    n = 2**28 // world * world
    whole = torch.randn(n, device="cuda").bfloat16()
    part = torch.empty(n // world, device="cuda", dtype=torch.bfloat16)
    for m, k, c in ((16384, 4096, 16384), (16384, 1600, 4800)):
        a = torch.randn(m, k, device="cuda").bfloat16()
        w = torch.randn(k, c, device="cuda").bfloat16()
        for name, run in (("all_gather", lambda: dist.all_gather_into_tensor(whole, part)),
                          ("reduce_scatter", lambda: dist.reduce_scatter_tensor(part, whole)),
                          ("all_reduce", lambda: dist.all_reduce(whole))):
            alone = slowest_median(lambda: torch.mm(a, w), 8, world, 10)
            comm_alone = slowest_median(run, 8, world, 2)
            # Enough products to span two collectives and enough collectives to span ten products.
            calls = max(2, int(20 * alone / comm_alone) + 2)
            times = []
            comm_times = []
            for _ in range(8):
                torch.cuda.synchronize()
                dist.barrier()
                torch.cuda.synchronize()
                e = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
                with torch.cuda.stream(comm):
                    run()
                    e[2].record()
                    for _ in range(calls):
                        run()
                    e[3].record()
                torch.mm(a, w)
                e[0].record()
                for _ in range(10):
                    torch.mm(a, w)
                e[1].record()
                torch.cuda.synchronize()
                times.append(e[0].elapsed_time(e[1]) * 1e-3 / 10)
                comm_times.append(e[2].elapsed_time(e[3]) * 1e-3 / calls)
            # The collective beside products throughout.
            beside = []
            products = max(10, int(6 * comm_alone / alone) + 10)
            for _ in range(8):
                torch.cuda.synchronize()
                dist.barrier()
                torch.cuda.synchronize()
                e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                for _ in range(products):
                    torch.mm(a, w)
                with torch.cuda.stream(comm):
                    run()
                    e[0].record()
                    run()
                    run()
                    e[1].record()
                torch.cuda.synchronize()
                beside.append(e[0].elapsed_time(e[1]) * 1e-3 / 2)
            times.sort()
            beside.sort()
            rows.append({"op": name, "m": m, "k": k, "n": c, "gemm_alone_seconds": alone,
                         "gemm_overlapped_seconds": times[len(times) // 2],
                         "collective_bytes": 2 * n, "collective_alone_seconds": comm_alone,
                         "collective_overlapped_seconds": beside[len(beside) // 2]})
    return rows


def worker(rank, world, path):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    result = {"gpu": torch.cuda.get_device_name(), "world_size": world, "torch": torch.__version__,
              "nccl": ".".join(map(str, torch.cuda.nccl.version())),
              "collectives": collectives(rank, world), "pcie": pcie(rank, world),
              "overlap": overlap(rank, world)}
    if rank == 0:
        with open(path, "w") as out:
            json.dump(result, out, indent=0)
        print("measured", world, "GPUs")
    dist.destroy_process_group()


if __name__ == "__main__":
    world = torch.cuda.device_count()
    mp.spawn(worker, args=(world, sys.argv[1]), nprocs=world)
