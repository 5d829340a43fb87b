#!/usr/bin/env python3
"""One GPU held to the memory of a smaller card: zeroplan's plan beside the best of several DeepSpeed
configs, on the same model, tokens a step and GPU.

    python3 benchmarks/within_memory.py                              # Llama 3.1 8B, four cases
    python3 benchmarks/within_memory.py --only zeroplan --cards rtx4090 --seq-len 2048
    python3 benchmarks/within_memory.py --cards rtx5090 --hw mine.json --json results.jsonl
    python3 benchmarks/within_memory.py --only zeroplan --method qlora --cards rtx3060 rtx4080 --tokens 16384

All of the GPU but what a card of the profile --cards has usable is taken first (hold_gpu.py), so
that neither can have more. zeroplan plans for this machine with that much GPU memory and
--host-memory, and trains its plan. DeepSpeed's candidates are stage 2 and 3 with the optimizer on the
host, parameters on the GPU or the host, every layer recomputed, at the micro-batches named below;
the fastest that runs counts. Its CPU Adam is compiled on the first run. DeepSpeed 0.19.6 took 185 GB
of host memory of an 8B model where that was measured, at stage 3: where the host has less, give --only
zeroplan, as a machine that runs out may go down. Random weights, random tokens. Prints a table; exit
code 1 if something that was run failed, but for DeepSpeed candidates beside one that ran.
"""
import argparse
import concurrent.futures
import json
import pathlib
import resource
import shlex
import statistics
import sys
import tempfile
import time
import types

import numpy as np

import hold_gpu
import train_benchmark
from train_benchmark import gib, shapes, zeroplan

# Tokens of a micro-step and placement of DeepSpeed's candidates, likeliest first.
CANDIDATES = {
    "rtx4090": [(16384, dict(stage=3, offload_param="cpu")),
                (8192, dict(stage=3, offload_param="cpu")),
                (4096, dict(stage=3, offload_param="none")),
                (4096, dict(stage=2, offload_param="none"))],
    "rtx5090": [(16384, dict(stage=3, offload_param="cpu")),
                (8192, dict(stage=2, offload_param="none")),
                (8192, dict(stage=3, offload_param="none")),
                (32768, dict(stage=3, offload_param="cpu"))],
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3.1-8b", help="preset, or a config.json")
    parser.add_argument("--method", choices=["full", "lora", "qlora"], default="full",
                        help="what is trained; adapters go with --only zeroplan")
    parser.add_argument("--cards", nargs="+", metavar="PROFILE", default=list(CANDIDATES),
                        help="any with --only zeroplan")
    parser.add_argument("--seq-len", nargs="+", type=int, default=[2048, 4096])
    parser.add_argument("--tokens", type=int, default=65536, help="of an optimizer step")
    parser.add_argument("--host-memory", default="128GiB", help="that zeroplan plans with")
    parser.add_argument("--hw", help="profile that zeroplan plans with (default: this machine's)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1, help="of DeepSpeed one more: it compiles")
    parser.add_argument("--only", choices=["zeroplan", "deepspeed"])
    parser.add_argument("--candidates", nargs="+", type=int, metavar="INDEX",
                        help="of DeepSpeed's, from 0 (default: all)")
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--python", default=sys.executable, help="one that has DeepSpeed")
    parser.add_argument("--deepspeed-args", default="", help="more options of pytorch_train.py")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one run")
    parser.add_argument("--budget", type=float, default=float("inf"),
                        help="seconds after which no other run starts")
    parser.add_argument("--json", help="append results, one object a line")
    args = parser.parse_args()
    args.shape, args.gpus = shapes.load_shape(args.model), 1
    if args.only != "zeroplan" and (args.method != "full" or not set(args.cards) <= set(CANDIDATES)):
        parser.error(f"DeepSpeed has candidates for all weights on {', '.join(CANDIDATES)}; "
                     "give --only zeroplan")
    for length in args.seq_len:
        if args.tokens % length != 0:
            parser.error(f"--tokens {args.tokens} is no multiple of --seq-len {length}")
    return args


def usable_bytes(args, card):
    profile = json.loads(zeroplan.run_command([args.binary, "hw", "show", card, "--format", "json"], 60))
    memory = profile["gpu"]["usable_memory"]
    return int(memory["value"] * hold_gpu.UNITS[memory["unit"]])


def run_and_measure(command, timeout):
    """The most host memory that one process of the command had, in bytes."""
    zeroplan.run_command(command, timeout)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def run_zeroplan(args, seq_len, limit, work):
    """The plan's choice, and what it did."""
    plan, metrics = work / "plan.json", work / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    memory = ["--gpu-memory", f"{limit // 10**6}MB"]
    planning = [args.binary, "plan", "--model", args.model, "--gpus", args.gpus, "--seq-len", seq_len,
                "--global-batch-tokens", args.tokens, "--host-memory", args.host_memory, *memory,
                "--method", args.method, "--plan-out", plan, *shlex.split(getattr(args, "choice", ""))]
    training = [args.binary, "train", "--backend", "cuda", "--plan", plan, "--data",
                work / zeroplan.token_file_name(args.shape.vocab), "--no-shuffle", "--steps",
                args.warmup + args.steps, *memory, "--metrics", metrics]
    if args.method != "full":
        training.append("--fresh-weights")
    if args.hw:
        planning += ["--hw", args.hw]
        training += ["--hw", args.hw]
    planning, training = [[str(part) for part in command] for command in (planning, training)]
    print(f"  {shlex.join(planning)}\n  {shlex.join(training)}", file=sys.stderr, flush=True)
    told = zeroplan.run_command(planning, args.timeout)
    print(next((part for part in told.split("\n\n") if part.startswith("Chosen")), told)
          .split("\nA step")[0], flush=True)
    # In a process of its own, whose children are this run's.
    with concurrent.futures.ProcessPoolExecutor(1) as alone:
        host_peak = alone.submit(run_and_measure, training, args.timeout).result()
    result = zeroplan.read_metrics(metrics)
    timed = result["steps"][args.warmup:]
    if len(timed) != args.steps or result["end"] is None:
        raise zeroplan.Failed(f"{len(result['steps'])} steps in {metrics.name} and no end")
    losses, start = zeroplan.losses_of(result), result["start"]
    return {"executor": "zeroplan", "choice": start["plan"], "commands": [planning, training],
            "tokens_per_second": statistics.median(s["tokens_per_second"] for s in timed),
            "step_seconds": [s["step_seconds"] for s in timed],
            "predicted": json.loads(plan.read_text())["predicted"],
            "planned_bytes": start["planned_bytes"]["gpu"]["total"],
            "planned_host_bytes": start["planned_bytes"]["host"]["total"],
            "used_bytes": result["end"]["device_used_bytes"], "host_bytes": host_peak,
            "loss_first": losses[0], "loss_last": losses[-1]}


def run_deepspeed(args, seq_len, candidate):
    micro_tokens, placement = candidate
    micro_batch = min(micro_tokens, args.tokens) // seq_len
    options = types.SimpleNamespace(
        python=args.python, gpus=1, model=args.model, micro_batch=micro_batch,
        grad_accum=args.tokens // seq_len // micro_batch, seq_len=seq_len, steps=args.steps,
        warmup=args.warmup + 1, backend="cuda", recompute=True, offload_optimizer="cpu",
        deepspeed_args=args.deepspeed_args, timeout=args.timeout, **placement)
    command = train_benchmark.torch_command(options, "deepspeed")
    print(f"  {shlex.join(command)}", file=sys.stderr, flush=True)
    result = train_benchmark.run_torch(options, command)
    return {**result, "commands": [command], "choice": dict(placement, micro_batch=micro_batch,
                                                            grad_accum=options.grad_accum),
            "tokens_per_second": result["tokens_per_second_per_gpu"], "planned_bytes": None,
            "host_bytes": result["host_peak_bytes"]}


def label(run):
    choice = run["choice"]
    where = [part for part, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param"))
             if choice.get(key, "cpu") != "none"]
    recompute = choice.get("checkpointing", "full")
    return (f"stage {choice['stage']}, {' and '.join(where) or 'nothing'} on the host, "
            f"{'no' if recompute == 'none' else recompute} recompute, "
            f"{choice['micro_batch']} x {choice['grad_accum']}")


def print_runs(case, limit, runs):
    print(f"\n{case}, held to {gib(limit)} GiB")
    print(f"{'executor':10} {'tokens/s':>9} {'planned':>9} {'planned GiB':>12} {'used GiB':>9} "
          f"{'host GiB':>9}  choice")
    for run in runs:
        planned = run.get("predicted", {}).get("tokens_per_second")
        print(f"{run['executor']:10} {run['tokens_per_second']:9,.0f} "
              f"{'-' if planned is None else f'{planned:,.0f}':>9} "
              f"{gib(run['planned_bytes']):>12} {gib(run['used_bytes']):>9} "
              f"{gib(run['host_bytes']):>9}  {label(run)}")
    best = {name: max((r["tokens_per_second"] for r in runs if r["executor"] == name), default=None)
            for name in ("zeroplan", "DeepSpeed")}
    if all(best.values()):
        print(f"zeroplan / DeepSpeed's best: {best['zeroplan'] / best['DeepSpeed']:.2f}", flush=True)


class Cases:
    def __init__(self, args, work):
        self.args, self.work, self.begin = args, work, time.monotonic()
        self.failed = False

    def attempt(self, name, held, run):
        """One run within the held memory; None, told, if it failed or there is no time for it."""
        if time.monotonic() - self.begin > self.args.budget:
            print(f"{name}: not run, --budget is spent", flush=True)
            return None
        def told(result):
            return (f"{result['tokens_per_second']:,.0f} tokens/s, {gib(result['used_bytes'])} GiB used, "
                    f"{gib(result['host_bytes'])} of the host, loss {result['loss_first']:.3f} to "
                    f"{result['loss_last']:.3f}")

        result = train_benchmark.attempt(name, run, held, told)
        return {"executor": name, **result} if "error" in result else result

    def run(self, card, seq_len):
        args, limit = self.args, usable_bytes(self.args, card)
        runs = []
        with hold_gpu.Held(limit) as held:
            if args.only != "deepspeed":
                runs.append(self.attempt("zeroplan", held, lambda: run_zeroplan(
                    args, seq_len, limit, self.work)))
            candidates = CANDIDATES[card] if args.only != "zeroplan" else []
            for index, candidate in enumerate(candidates):
                if args.candidates is None or index in args.candidates:
                    runs.append(self.attempt("DeepSpeed", held, lambda c=candidate: run_deepspeed(
                        args, seq_len, c)))
        runs = [run for run in runs if run is not None]
        if args.json:
            record = {"model": args.model, "method": args.method, "card": card, "limit_bytes": limit, "seq_len": seq_len,
                      "tokens": args.tokens, "gpus_present": train_benchmark.gpu_names(),
                      "zeroplan": zeroplan.version(args.binary), "commit": train_benchmark.commit(),
                      "runs": runs}
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(record, default=str) + "\n")
        good = [run for run in runs if "error" not in run]
        ran = {run["executor"] for run in good}
        self.failed |= any(run["executor"] not in ran for run in runs)
        print_runs(f"{args.model}, {args.method}, {card}, sequence {seq_len}, {args.tokens} tokens a step", limit, good)


def main():
    args = parse()
    with tempfile.TemporaryDirectory() as name:
        cases = Cases(args, pathlib.Path(name))
        tokens = np.random.default_rng(1).integers(
            args.shape.vocab, size=args.tokens * (args.warmup + args.steps) + 1)
        zeroplan.write_tokens(cases.work / zeroplan.token_file_name(args.shape.vocab), tokens)
        try:
            for card in args.cards:
                for seq_len in args.seq_len:
                    cases.run(card, seq_len)
        except hold_gpu.NotHeld as error:
            print(f"within_memory.py: {error}", file=sys.stderr)
            return 2
    return 1 if cases.failed else 0


if __name__ == "__main__":
    sys.exit(main())
