#!/usr/bin/env python3
"""What light optimizer states and products of eight bits cost in loss: one model, one text, each kind.

    python3 benchmarks/accuracy/states_accuracy.py --data train.bin --validation-data held.bin --out DIR
    python3 benchmarks/accuracy/states_accuracy.py --out DIR --summary-only    # of runs that are there
    python3 benchmarks/accuracy/states_accuracy.py --backend cpu --model examples/byte_gpt/config.json \\
        --data docs/data.md --validation-data docs/config.md --steps 20 --validate-every 5 \\
        --seq-len 64 --micro-batch 2 --global-batch 4 --out DIR                # tries it on a CPU

Runs `zeroplan train` with fp32 states and products of 16 bits once for each of --seeds, and with each other
kind of KINDS at the first of them (--kinds: those of STATES by default; fp8 for those of eight bits). A seed decides the fresh weights and the order of the data, so each kind trains on the
batches of the fp32 run with its seed, from the same weights. The seeds' spread is what chance
makes of the loss.

A run takes one device; as many go at once as there are GPUs (--parallel). What lies in --out is kept: a run
whose metrics are complete is not repeated. Each run leaves NAME.jsonl (its metrics) and NAME.log. Then
summary.json, summary.md and curves.svg say how far each kind's validation loss is from the mean of the
fp32 runs. Exit code 1 if a run failed. Standard library only.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import time

import plot

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What differs from fp32 masters, fp32 moments and products of 16 bits.
STATES = {
    "fp32": [],
    "split": ["--master-weights", "split"],
    "bf16": ["--master-weights", "16bit", "--optimizer-states", "bf16"],
    "8bit": ["--optimizer-states", "8bit"],
    "16bit-8bit": ["--master-weights", "16bit", "--optimizer-states", "8bit"],
}
FP8 = ["--matmul-dtype", "fp8"]
EIGHT_BITS = {
    "fp8": FP8,
    "fp8-full-sums": FP8,
    "fp8-e5m2": FP8,
    "fp8-blocks": FP8,
    "fp8-bf16": [*FP8, *STATES["bf16"]],
}
# Of "_zeroplan"."fp8", beside the option.
FP8_CONFIG = {
    "fp8-full-sums": {"fast_gradients": False},
    "fp8-e5m2": {"gradients": "e5m2", "fast_gradients": False},
    "fp8-bf16": {"fast_gradients": False},
    "fp8-blocks": {"recipe": "blocks"},
}
KINDS = STATES | EIGHT_BITS
MEANING = {
    "fp32": "fp32 masters, fp32 moments",
    "split": "masters in two halves, fp32 moments",
    "bf16": "bf16 masters, bf16 moments",
    "8bit": "fp32 masters, 8-bit moments",
    "16bit-8bit": "bf16 masters, 8-bit moments",
    "fp8": "products of 8 bits, one scale a tensor",
    "fp8-full-sums": "the same, sums of fp32 for gradients",
    "fp8-e5m2": "the same, sums of fp32, gradients in E5M2",
    "fp8-blocks": "products of 8 bits, a scale a block",
    "fp8-bf16": "the same, sums of fp32, bf16 masters and moments",
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--summary-only", action="store_true", help="train nothing")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(STATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of fp32 states")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--validation-data", nargs="+", help="all of it is validated with")
    parser.add_argument("--steps", type=int, default=460)
    parser.add_argument("--validate-every", type=int, default=50)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--global-batch", type=int, default=128, help="sequences")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--backend", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--parallel", type=int, help="runs at once (default: the GPUs; on the CPU 1)")
    parser.add_argument("--binary", default=str(ROOT / "build/release/zeroplan"))
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[],
                        help="the rest of the line goes to each run")
    args = parser.parse_args()
    if not args.summary_only and not (args.data and args.validation_data):
        parser.error("--data and --validation-data: name the token files or texts")
    if args.global_batch % args.micro_batch:
        parser.error(f"--global-batch: {args.global_batch} is not a multiple of --micro-batch")
    return args


def devices(args):
    """What each run at once sees as CUDA_VISIBLE_DEVICES."""
    if args.backend == "cpu":
        return [""] * (args.parallel or 1)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
                                capture_output=True, text=True, check=True)
        seen = ",".join(listed.stdout.split())
    return seen.split(",")[:args.parallel]


def planned_runs(args):
    """(name, kind, seed) of each run."""
    seeds = {kind: args.seeds if kind == "fp32" else args.seeds[:1] for kind in args.kinds}
    return [(f"{kind}-seed{seed}", kind, seed) for kind in args.kinds for seed in seeds[kind]]


def config(args, kind):
    """Brown et al. 2020 (GPT-3, appendix B) for 125M: rate, betas, decay, clipping, cosine to 10 %."""
    return {
        "train_batch_size": args.global_batch,
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 0},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "_zeroplan": {"lr_schedule": "cosine", "warmup_ratio": 0.05, "min_lr_ratio": 0.1} |
                     ({"fp8": {"enabled": True} | FP8_CONFIG[kind]} if kind in FP8_CONFIG else {}),
    }


def command(args, kind, seed, metrics):
    return [args.binary, "train", "--model", args.model, "--fresh-weights", "--config",
            args.out / f"{kind}.config.json",
            "--data", *args.data, "--validation-data", *args.validation_data, "--backend", args.backend,
            "--gpus", 1, "--seq-len", args.seq_len, "--steps", args.steps, "--seed", seed,
            "--validate-every", args.validate_every, "--no-progress", "--metrics", metrics,
            *KINDS[kind], *args.train_args]


def read(path):
    """{"start", "steps", "validations", "end"} of a metrics file."""
    result = {"start": None, "steps": [], "validations": [], "end": None}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:  # half a line, which a killed run left
            break
        if event["event"] == "step":
            result["steps"].append(event)
        elif event["event"] == "validation":
            result["validations"].append(event)
        elif event["event"] in ("start", "end"):
            result[event["event"]] = event
    return result


def run(args, name, kind, seed, free):
    """Trains unless that was done; returns whether the metrics are complete."""
    metrics = args.out / f"{name}.jsonl"
    if read(metrics)["end"]:
        print(f"{name}: kept", flush=True)
        return True
    metrics.unlink(missing_ok=True)
    device = free.get()
    start = time.time()
    try:
        words = [str(word) for word in command(args, kind, seed, metrics)]
        env = dict(os.environ)
        if device:
            env["CUDA_VISIBLE_DEVICES"] = device
        with open(args.out / f"{name}.log", "w", encoding="utf-8") as log:
            print(" ".join(words), file=log, flush=True)
            code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, env=env, check=False).returncode
    finally:
        free.put(device)
    print(f"{name}: exit code {code} after {time.time() - start:.0f} s", flush=True)
    if code:
        print("\n".join((args.out / f"{name}.log").read_text().splitlines()[-8:]), flush=True)
    return code == 0


def summarize(args):
    """The complete runs beside the mean of the fp32 ones; None if there is none of these."""
    runs = []
    for name, kind, seed in planned_runs(args):
        result = read(args.out / f"{name}.jsonl")
        if not result["end"] or not result["validations"]:
            continue
        speeds = [step["tokens_per_second"] for step in result["steps"][len(result["steps"]) // 2:]]
        runs.append({
            "name": name, "kind": kind, "seed": seed, "steps": result["end"]["steps"],
            "skipped_steps": result["end"]["skipped_steps"],
            "tokens": sum(step["tokens"] for step in result["steps"]),
            "validation_loss": result["validations"][-1]["loss"],
            "planned_gpu_bytes": result["start"]["planned_bytes"]["gpu"]["total"],
            "tokens_per_second": statistics.median(speeds),
            "validations": [[event["step"], event["loss"]] for event in result["validations"]
                            if event["loss"] is not None],
        })
    plain = {run["seed"]: run["validation_loss"] for run in runs if run["kind"] == "fp32"}
    if not plain or None in plain.values():
        return None
    mean = statistics.fmean(plain.values())
    for row in runs:
        loss = row["validation_loss"]  # null: not finite
        row["percent_of_mean"] = None if loss is None else 100 * (loss / mean - 1)
        row["percent_of_same_seed"] = None if loss is None or row["seed"] not in plain else \
            100 * (loss / plain[row["seed"]] - 1)
    spread = 100 * (max(plain.values()) - min(plain.values())) / mean
    return {"model": args.model, "fp32_mean": mean, "fp32_spread_percent": spread,
            "fp32_deviation_percent": 100 * statistics.stdev(plain.values()) / mean if len(plain) > 1 else None,
            "runs": runs}


def markdown(summary):
    def text(value, form):
        return "" if value is None else form.format(value)

    lines = ["| states | seed | validation loss | to the fp32 mean | to fp32 of the seed | tokens/s "
             "| planned bytes of a GPU |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in summary["runs"]:
        lines.append(f"| {MEANING[row['kind']]} | {row['seed']} | {text(row['validation_loss'], '{:.4f}')} "
                     f"| {text(row['percent_of_mean'], '{:+.3f} %')} "
                     f"| {text(row['percent_of_same_seed'], '{:+.3f} %')} "
                     f"| {row['tokens_per_second']:,.0f} | {row['planned_gpu_bytes']:,} |")
    lines.append(f"\nMean of the fp32 runs: {summary['fp32_mean']:.4f}; from the lowest to the highest of them "
                 f"{summary['fp32_spread_percent']:.3f} % of it.")
    return "\n".join(lines)


def curves(summary):
    """Validation losses, and how far each is from the mean of the fp32 runs, by step."""
    losses = {row["name"]: dict(row["validations"]) for row in summary["runs"]}
    plain = [losses[row["name"]] for row in summary["runs"] if row["kind"] == "fp32"]
    steps = [step for step in plain[0] if all(step in run for run in plain)]
    mean = {step: statistics.fmean(run[step] for run in plain) for step in steps}
    percent = {name: {step: 100 * (loss / mean[step] - 1) for step, loss in run.items() if step in mean}
               for name, run in losses.items()}
    return plot.svg([("validation loss", losses), ("% above the mean of the fp32 runs", percent)])


def main():
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = False
    if not args.summary_only:
        for kind in args.kinds:
            (args.out / f"{kind}.config.json").write_text(json.dumps(config(args, kind), indent=2) + "\n")
        free = queue.Queue()
        for device in devices(args):
            free.put(device)
        with concurrent.futures.ThreadPoolExecutor(free.qsize()) as pool:
            done = [pool.submit(run, args, name, kind, seed, free) for name, kind, seed in planned_runs(args)]
            failed = not all(future.result() for future in done)
    summary = summarize(args)
    if summary is None:
        print("no fp32 run is complete: nothing to compare with")
        return 1
    (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (args.out / "summary.md").write_text(markdown(summary) + "\n")
    (args.out / "curves.svg").write_text(curves(summary))
    print(markdown(summary))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
