#!/usr/bin/env python3
"""Long sequences, each on one GPU or shared by several: zeroplan beside DeepSpeed's ALST and Ulysses,
and mixes of homes of activations beside what plan predicts of them.

    python3 benchmarks/long_sequences.py --seq-len 65536 131072 262144 --host-memory 256GiB
    python3 benchmarks/long_sequences.py --gpus 4 --seq-len 131072 262144 --gpu-memory 140GB
    python3 benchmarks/long_sequences.py --only deepspeed --longest --seq-len 393216 458752 524288
    python3 benchmarks/long_sequences.py --only zeroplan --longest
    python3 benchmarks/long_sequences.py --mixes --model llama3.2-1b --seq-len 65536 \
        --gpu-memory 30GB 45GB 100GB

One sequence a step, random weights and tokens, the optimizer where the plan says, of DeepSpeed on the
host, or sharded over several GPUs. zeroplan plans for --gpu-memory and --host-memory with --checkpointing auto, and trains its plan.
DeepSpeed trains by peers/pytorch_train.py --alst at stage 3. --longest tries DeepSpeed at each length
with attention within windows, which has the memory of the whole and little of its time, and counts
what the GPU and --host-memory carry (the lines say why others did not run); zeroplan's is asked of plan --largest seq-len. --mixes trains
seven homes of all layers' activations at each limit, those that fit it, behind what plan chose. Prints tables; exit code 1 if a run failed,
but for lengths that were tried.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shlex
import statistics
import sys
import tempfile
import types

import numpy as np

import hold_gpu
import train_benchmark
import within_memory
from train_benchmark import gib, shapes, zeroplan

WINDOW = 4096  # tokens; lengths are multiples of it
MIXES = {
    "none": "--checkpointing none", "selective": "--checkpointing selective",
    "products": "--checkpointing products", "full": "--checkpointing full",
    "none, host": "--checkpointing none --offload-activations",
    "products, host": "--checkpointing products --offload-activations",
    "full, host": "--checkpointing full --offload-activations"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3.1-8b", help="preset, or a config.json")
    parser.add_argument("--seq-len", nargs="+", type=int, default=[65536, 131072, 262144])
    parser.add_argument("--gpus", type=int, default=1, help="that share each sequence")
    parser.add_argument("--gpu-memory", nargs="+", default=["80GB"])
    parser.add_argument("--host-memory", default="256GiB")
    parser.add_argument("--hw", help="profile that zeroplan plans with (default: this machine's)")
    parser.add_argument("--only", choices=["zeroplan", "deepspeed"])
    parser.add_argument("--longest", action="store_true")
    parser.add_argument("--mixes", action="store_true")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--python", default=sys.executable, help="one that has DeepSpeed")
    parser.add_argument("--deepspeed-args", default="--sdpa cudnn", help="more options of pytorch_train.py")
    parser.add_argument("--timeout", type=float, default=570, help="seconds of one run")
    parser.add_argument("--json", help="append results, one object a line")
    args = parser.parse_args()
    args.shape, args.method = shapes.load_shape(args.model), "full"
    if args.longest and any(seq_len % WINDOW for seq_len in args.seq_len):
        parser.error(f"--longest needs lengths that {WINDOW} divides")
    return args


def write_tokens(args, work, seq_len):
    tokens = np.random.default_rng(1).integers(
        args.shape.vocab, size=seq_len * (args.warmup + args.steps) + 1)
    zeroplan.write_tokens(work / zeroplan.token_file_name(args.shape.vocab), tokens)


def run_zeroplan(args, seq_len, limit, work, choice="--checkpointing auto"):
    write_tokens(args, work, seq_len)
    options = types.SimpleNamespace(**{**vars(args), "tokens": seq_len,
                                       "choice": f"{choice} --sequence-ranks {args.gpus}"})
    return within_memory.run_zeroplan(options, seq_len, limit, work)


def run_alst(args, seq_len, more=""):
    options = types.SimpleNamespace(
        python=args.python, gpus=args.gpus, model=args.model, micro_batch=1, grad_accum=1, seq_len=seq_len,
        steps=args.steps, warmup=args.warmup, backend="cuda", recompute=False, stage=3,
        offload_optimizer="cpu" if args.gpus == 1 else "none", offload_param="none", timeout=args.timeout,
        deepspeed_args=f"--alst --sequence-ranks {args.gpus} {args.deepspeed_args} {more}")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as ALST's recipes do
    command = train_benchmark.torch_command(options, "deepspeed")
    print(f"  {shlex.join(command)}", file=sys.stderr, flush=True)
    result = train_benchmark.run_torch(options, command)
    return {**result, "tokens_per_second": result["tokens_per_second_per_gpu"] * args.gpus,
            "planned_bytes": None, "host_bytes": result["host_peak_bytes"]}


class Runs:
    """What was run, as lines of a table and of --json."""

    def __init__(self, args):
        self.args, self.failed = args, False

    def attempt(self, name, seq_len, limit, run, held, may_fail=False):
        def told(result):
            predicted = (result.get("predicted") or {}).get("step_seconds", {}).get("total")
            median = statistics.median(result["step_seconds"])
            off = "" if predicted is None else f"predicted {predicted:.3f} s ({100 * (predicted / median - 1):+.1f} %), "
            return (f"{result['tokens_per_second']:,.0f} tokens/s, {median:.3f} s a step, {off}"
                    f"planned {gib(result['planned_bytes'])} GiB, used {gib(result['used_bytes'])} GiB, host "
                    f"{gib(result['host_bytes'])} GiB, loss {result['loss_last']:.4f}")

        result = train_benchmark.attempt(f"{name} {seq_len}", run, held, told, "does not run" if may_fail else "FAILED")
        self.failed |= "error" in result and not may_fail
        if self.args.json:
            with open(self.args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "seq_len": seq_len, "limit_bytes": limit, "gpus":
                                       train_benchmark.gpu_names(), "commit": train_benchmark.commit(), **result},
                                      default=str) + "\n")
        return None if "error" in result else result


def beside_alst(args, runs, limit, work, held):
    for seq_len in args.seq_len:
        ours = theirs = None
        if args.only != "deepspeed":
            ours = runs.attempt("zeroplan", seq_len, limit,
                                lambda n=seq_len: run_zeroplan(args, n, limit, work), held)
        if args.only != "zeroplan":
            theirs = runs.attempt("DeepSpeed", seq_len, limit, lambda n=seq_len: run_alst(args, n), held)
        if ours and theirs:
            print(f"zeroplan / DeepSpeed at {seq_len}: "
                  f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}", flush=True)


def longest(args, runs, limit, held):
    if args.only != "deepspeed":
        command = [args.binary, "plan", "--model", args.model, "--gpus", args.gpus, "--sequence-ranks", args.gpus,
                   "--micro-batch", 1, "--largest",
                   "seq-len", "--checkpointing", "auto", "--gpu-memory", f"{limit // 10**6}MB", "--host-memory",
                   args.host_memory, *(["--hw", args.hw] if args.hw else [])]
        print(zeroplan.run_command(command, args.timeout), flush=True)
    if args.only != "zeroplan":
        carried = []
        for seq_len in args.seq_len:
            result = runs.attempt("DeepSpeed", seq_len, limit, lambda n=seq_len: run_alst(
                args, n, f"--attention-window {WINDOW}"), held, may_fail=True)
            if result and result["host_bytes"] <= hold_gpu.parse_bytes(args.host_memory):
                carried.append(seq_len)
        print(f"DeepSpeed's longest of those tried: {max(carried, default=0)} tokens", flush=True)


def mixes(args, runs, limit, work, held):
    for seq_len in args.seq_len:
        results = {}
        for name, choice in {"auto": "--checkpointing auto", **MIXES}.items():
            results[name] = runs.attempt(name, seq_len, limit, lambda c=choice, n=seq_len: run_zeroplan(
                args, n, limit, work, c), held, may_fail=name != "auto")
        ran = {name: run["tokens_per_second"] for name, run in results.items() if run}
        if not ran:
            print(f"none ran within {limit / 10**9:.1f} GB", flush=True)
            continue
        print(f"of {len(ran)} that ran within {limit / 10**9:.1f} GB the fastest is {max(ran, key=ran.get)}; "
              f"auto is at {100 * ran.get('auto', 0) / max(ran.values()):.1f} % of it", flush=True)


def main():
    args = parse()
    runs = Runs(args)
    with tempfile.TemporaryDirectory() as name:
        for text in args.gpu_memory:
            limit = hold_gpu.parse_bytes(text)
            print(f"{args.model} held to {text} of GPU memory, {args.host_memory} of the host's", flush=True)
            with contextlib.ExitStack() as stack:
                held, *_ = [stack.enter_context(hold_gpu.Held(limit, gpu)) for gpu in range(args.gpus)]
                if args.longest:
                    longest(args, runs, limit, held)
                elif args.mixes:
                    mixes(args, runs, limit, pathlib.Path(name), held)
                else:
                    beside_alst(args, runs, limit, pathlib.Path(name), held)
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
