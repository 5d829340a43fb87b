#!/usr/bin/env python3
"""Training speed and memory of zeroplan beside PyTorch, torchao, DeepSpeed and LLM.Q, on the same
GPUs, one after the other.

    python3 benchmarks/train_benchmark.py --row gpt2-1gpu --repeat 3 --json results.jsonl
    python3 benchmarks/train_benchmark.py --row llama3.1-8b-2gpu-stage3 --deepspeed
    python3 benchmarks/train_benchmark.py --row qwen2.5-1.5b-fp8 --llmq DIR --steps 4
    python3 benchmarks/train_benchmark.py --model gpt3-2.7b --gpus 2 --stage 3 --micro-batch 8
    python3 benchmarks/train_benchmark.py --list

All train on random tokens in bf16, or with the layers' products in FP8, with AdamW and clipping, at
the same batch; masters and moments are fp32 where a row does not say otherwise, LLM.Q's bf16.
PyTorch, torchao and DeepSpeed run by benchmarks/peers/pytorch_train.py. A row sets what its options
do; options given beside it win. A run that fails is reported with its last lines and the others
still run; exit code 1 then.
"""
import argparse
import datetime
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))

import llmq_run as llmq
import numpy as np
import shapes
import zeroplan_run as zeroplan

REDUCE_AS_ZEROPLAN = "--reduce-dtype bf16"  # FSDP2's default here is fp32
STATES_AS_LLMQ = "--master-weights 16bit --optimizer-states bf16"

QWEN_1_5B = dict(model="qwen2.5-1.5b", micro_batch=32, grad_accum=16, steps=6, warmup=2)
# With fp32 states and all activations kept, as PyTorch has them, more than a GPU of 141 GB has.
QWEN_7B = dict(model="qwen2.5-7b", micro_batch=16, checkpointing="selective",
               zeroplan_args=STATES_AS_LLMQ, peers=())

# PyTorch's nearest mode is chosen by stage, see torch_mode.
ROWS = {
    "gpt2-1gpu": dict(model="gpt2", micro_batch=32),
    "gpt2-4gpu": dict(model="gpt2", micro_batch=32, gpus=4),
    "gpt2-xl-1gpu": dict(model="gpt2-xl", micro_batch=16),
    "gpt2-xl-4gpu-stage2": dict(model="gpt2-xl", micro_batch=16, gpus=4, stage=2),
    "gpt2-xl-4gpu-stage3": dict(model="gpt2-xl", micro_batch=16, gpus=4, stage=3),
    "gpt3-2.7b-1gpu": dict(model="gpt3-2.7b", micro_batch=16),
    "gpt3-6.7b-4gpu-stage3": dict(model="gpt3-6.7b", micro_batch=8, gpus=4, stage=3),
    # Host memory: zeroplan 12 bytes a parameter, PyTorch 16; a host of 128 GiB is too small.
    "llama3.2-1b-1gpu": dict(model="llama3.2-1b", micro_batch=8, seq_len=2048),
    "qwen2.5-1.5b-1gpu": dict(model="qwen2.5-1.5b", micro_batch=8, seq_len=2048),
    "llama3.2-3b-1gpu": dict(model="llama3.2-3b", micro_batch=4, seq_len=2048),
    "llama3.2-1b-2gpu-stage2": dict(model="llama3.2-1b", micro_batch=8, seq_len=2048, gpus=2,
                                    stage=2, torch_args=REDUCE_AS_ZEROPLAN),
    "llama3.1-8b-2gpu-stage3": dict(model="llama3.1-8b", micro_batch=2, seq_len=4096, gpus=2,
                                    stage=3, torch_args=REDUCE_AS_ZEROPLAN),
    "llama3.2-1b-fp8": dict(model="llama3.2-1b", micro_batch=8, seq_len=2048, matmul_dtype="fp8"),
    "llama3.2-3b-fp8": dict(model="llama3.2-3b", micro_batch=4, seq_len=2048, matmul_dtype="fp8"),
    "qwen2.5-1.5b-accum": dict(QWEN_1_5B, llmq_args="--lmhead-chunks=4"),
    "qwen2.5-1.5b-fp8": dict(QWEN_1_5B, matmul_dtype="fp8"),
    "qwen2.5-7b-light": QWEN_7B,
    "qwen2.5-7b-fp8": dict(QWEN_7B, matmul_dtype="fp8"),
    "llama3.1-8b-2gpu-stage3-fp8": dict(model="llama3.1-8b", micro_batch=2, seq_len=4096, gpus=2,
                                        stage=3, matmul_dtype="fp8",
                                        torch_args=REDUCE_AS_ZEROPLAN),
    "gpt2-10b-offload": dict(model="gpt2-10b", micro_batch=10, grad_accum=6, stage=2,
                             offload_optimizer="cpu", checkpointing="full", steps=5, warmup=2),
}
DEFAULTS = dict(gpus=1, micro_batch=8, grad_accum=1, seq_len=1024, stage=0, steps=20, warmup=5,
                offload_optimizer="none", offload_param="none", checkpointing="none",
                matmul_dtype="bf16", zeroplan_args="", torch_args="", llmq_args="")
EXECUTORS = {"zeroplan": "zeroplan", "pytorch": "PyTorch", "tensorwise": "torchao, tensorwise",
             "rowwise": "torchao, rowwise", "deepspeed": "DeepSpeed", "llmq": "LLM.Q"}
PEERS_OF = {"bf16": ("pytorch",), "fp8": ("tensorwise", "rowwise")}
MAX_FILE_TOKENS = 1 << 24  # the stream starts again where it ends


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=ROWS)
    parser.add_argument("--list", action="store_true", help="print the rows")
    parser.add_argument("--model", help="preset, or a Hugging Face config.json")
    for name in ("gpus", "micro-batch", "grad-accum", "seq-len", "steps", "warmup"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--stage", type=int, choices=range(4))
    parser.add_argument("--offload-optimizer", choices=["none", "cpu", "nvme"])
    parser.add_argument("--offload-param", choices=["none", "cpu", "nvme"])
    parser.add_argument("--offload-ratio", type=float)
    parser.add_argument("--nvme-path", help="default: the temporary folder")
    parser.add_argument("--checkpointing", choices=llmq.RECOMPUTE,
                        help="selective is zeroplan's and LLM.Q's; PyTorch keeps all then")
    parser.add_argument("--recompute", action="store_const", const="full", dest="checkpointing",
                        help="the same as --checkpointing full")
    parser.add_argument("--matmul-dtype", choices=llmq.MATMUL_DTYPES, help="of layers' products")
    parser.add_argument("--only", choices=EXECUTORS, nargs="+")
    parser.add_argument("--deepspeed", action="store_true",
                        help="DeepSpeed too, which --python has to be able to import")
    parser.add_argument("--llmq", metavar="DIR", help="LLM.Q too, whose program DIR/train is")
    parser.add_argument("--repeat", type=int, default=1, help="in turns; the first changes")
    parser.add_argument("--backend", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--zeroplan-args", help="more options, in one argument")
    parser.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    parser.add_argument("--torch-mode", choices=["ddp", "fsdp2-zero2", "fsdp2-zero3"])
    parser.add_argument("--torch-args", help="more options of pytorch_train.py, as PyTorch's")
    parser.add_argument("--deepspeed-args", default="", help="the same, as DeepSpeed's")
    parser.add_argument("--llmq-args", help="more options of LLM.Q's train")
    parser.add_argument("--timeout", type=float, default=570, help="seconds of one run")
    parser.add_argument("--json", help="append results, one object a line")
    args = parser.parse_args()
    if args.list:
        for name, row in ROWS.items():
            print(f"{name:28}", ", ".join(f"{key}={value}" for key, value in row.items()))
        sys.exit(0)
    row = {**DEFAULTS, **ROWS.get(args.row, {})}
    for key, value in row.items():
        if getattr(args, key, None) is None:
            setattr(args, key, value)
    if args.model is None:
        parser.error("give --row or --model")
    args.shape = shapes.load_shape(args.model)
    args.recompute = args.checkpointing == "full"
    peers = row.get("peers", PEERS_OF[args.matmul_dtype])
    args.executors = args.only or ["zeroplan", *peers, *["deepspeed"] * args.deepspeed,
                                   *["llmq"] * (args.llmq is not None)]
    return args


def torch_mode(args):
    if args.torch_mode:
        return args.torch_mode
    if args.offload_optimizer != "none" or args.offload_param != "none":
        return "fsdp2-zero3"  # FSDP2 offloads parameters too or nothing
    return {0: "ddp", 1: "fsdp2-zero2", 2: "fsdp2-zero2", 3: "fsdp2-zero3"}[args.stage]


def zeroplan_command(args, data, metrics, work):
    command = [args.binary, "train", "--backend", args.backend, "--model", args.model, "--data",
               data, "--no-shuffle", "--gpus", args.gpus, "--steps", args.warmup + args.steps,
               "--seq-len", args.seq_len, "--micro-batch", args.micro_batch, "--grad-accum",
               args.grad_accum, "--dtype", "bf16", "--lr", "1e-4", "--stage", args.stage,
               "--offload-optimizer", args.offload_optimizer, "--offload-param",
               args.offload_param, "--checkpointing", args.checkpointing, "--metrics", metrics]
    if args.matmul_dtype != "bf16":
        command += ["--matmul-dtype", args.matmul_dtype]
    if args.offload_ratio is not None:
        command += ["--offload-ratio", args.offload_ratio]
    if "nvme" in (args.offload_optimizer, args.offload_param):
        command += ["--nvme-path", args.nvme_path or work]
    return [str(part) for part in command] + shlex.split(args.zeroplan_args)


def torch_command(args, mode, float8=None):
    several = args.gpus > 1 or mode == "deepspeed"
    command = zeroplan.torchrun(args.python, args.gpus) if several else [args.python]
    command += [PEERS / "pytorch_train.py", "--model", args.model, "--mode", mode,
                "--micro-batch", args.micro_batch, "--grad-accum", args.grad_accum, "--seq-len",
                args.seq_len, "--steps", args.steps, "--warmup", args.warmup, "--device",
                args.backend]
    if args.recompute:
        command.append("--recompute")
    if float8:
        command += ["--float8", float8]
    if mode == "deepspeed":
        command += ["--stage", args.stage, "--offload-optimizer", args.offload_optimizer,
                    "--offload-param", args.offload_param]
    elif args.offload_optimizer != "none" or args.offload_param != "none":
        command.append("--offload")
    more = args.deepspeed_args if mode == "deepspeed" else args.torch_args
    return [str(part) for part in command] + shlex.split(more)


def command_of(executor, args, data, metrics, work):
    if executor == "zeroplan":
        return zeroplan_command(args, data, metrics, work)
    if executor == "llmq":
        return llmq.command(args, work) + shlex.split(args.llmq_args)
    if executor == "deepspeed":
        return torch_command(args, "deepspeed")
    return torch_command(args, torch_mode(args), None if executor == "pytorch" else executor)


def run_zeroplan(args, command, metrics):
    metrics.unlink(missing_ok=True)
    zeroplan.run_command(command, args.timeout)
    result = zeroplan.read_metrics(metrics)
    timed = result["steps"][args.warmup:]
    if len(timed) != args.steps or result["end"] is None:
        raise zeroplan.Failed(f"{len(result['steps'])} steps in {metrics.name}, expected "
                              f"{args.warmup + args.steps} and an end")
    end, losses = result["end"], zeroplan.losses_of(result)
    planned = result["start"]["planned_bytes"]["gpu"]
    rates = [step["tokens_per_second"] / args.gpus for step in timed]
    return {"tokens_per_second_per_gpu": statistics.median(rates),
            "step_seconds": [step["step_seconds"] for step in timed],
            "predicted_bytes": planned["total"],
            "used_bytes": end["device_used_bytes"], "planned": planned,
            "loss_first": losses[0], "loss_last": losses[-1], "metrics_end": end}


def run_torch(args, command):
    out = zeroplan.run_command(command, args.timeout)
    result = json.loads(out.strip().splitlines()[-1])
    return {**result, "predicted_bytes": None, "used_bytes": result["device_used_bytes"]}


def run_executor(executor, args, command, metrics, work):
    if executor == "zeroplan":
        return run_zeroplan(args, command, metrics)
    if executor == "llmq":
        return llmq.run(args, command, work)
    return run_torch(args, command)


def gpu_names():
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version",
                              "--format=csv,noheader"], capture_output=True, text=True, check=False)
        return out.stdout.strip().splitlines()
    except OSError:
        return []


def commit():
    out = subprocess.run(["git", "-C", str(zeroplan.ROOT), "describe", "--always", "--dirty"],
                         capture_output=True, text=True, check=False)
    return out.stdout.strip() or None


def gib(value):
    return "-" if value is None else f"{value / 2**30:.2f}"


def attempt(name, run, held, told, failure="FAILED"):
    """run()'s result without the memory that `held` has of the GPU, or {"error": ...}. Prints a line of it: told(result)."""
    began = time.monotonic()
    try:
        result = run()
    except (zeroplan.Failed, OSError, ValueError) as error:
        print(f"{name}: {failure} after {time.monotonic() - began:.0f} s: {error}", flush=True)
        return {"error": str(error)}
    if result["used_bytes"] is not None:
        result["used_bytes"] -= held.taken
    print(f"{name}: {told(result)}; {time.monotonic() - began:.0f} s in all", flush=True)
    return result


def summary(args, results):
    """Medians over the repetitions of one executor, or None."""
    if not results:
        return None
    rate = statistics.median(r["tokens_per_second_per_gpu"] for r in results)
    mfu = rate * args.shape.flops_per_token(args.seq_len) / shapes.H200_BF16_PEAK
    used = [r["used_bytes"] for r in results if r["used_bytes"] is not None]
    return {"tokens_per_second_per_gpu": rate, "mfu": mfu if args.backend == "cuda" else None,
            "predicted_bytes": results[-1]["predicted_bytes"],
            "used_bytes": max(used, default=None)}


def print_table(args, summaries, absent):
    print(f"\n{args.row or args.model}: {args.model}, {args.gpus} GPU(s), micro-batch "
          f"{args.micro_batch} x {args.grad_accum}, {args.seq_len} tokens, stage {args.stage}, "
          f"offload {args.offload_optimizer}/{args.offload_param}, "
          f"{'no' if args.checkpointing == 'none' else args.checkpointing} recompute, products in "
          f"{args.matmul_dtype}, median of {args.steps} steps x {args.repeat}")
    print(f"{'executor':10} {'tokens/s/GPU':>13} {'MFU %':>6} {'predicted GiB':>14} "
          f"{'used GiB':>9}")
    for name in args.executors:
        row = summaries.get(name)
        if row is None:
            print(f"{name:10} {'not run' if name in absent else 'failed':>13}")
            continue
        mfu = "-" if row["mfu"] is None else f"{100 * row['mfu']:.1f}"
        print(f"{name:10} {row['tokens_per_second_per_gpu']:13,.0f} {mfu:>6} "
              f"{gib(row['predicted_bytes']):>14} {gib(row['used_bytes']):>9}")
    ours = summaries.get("zeroplan")
    for name in args.executors:
        if name != "zeroplan" and ours and summaries.get(name):
            ratio = ours["tokens_per_second_per_gpu"] / summaries[name]["tokens_per_second_per_gpu"]
            print(f"zeroplan / {EXECUTORS[name]}: {ratio:.3f}", flush=True)


def main():
    args = parse()
    reason = llmq.why_not(args) if "llmq" in args.executors else None
    absent = {"llmq": reason} if reason else {}
    for name in absent:
        print(f"{name}: not run: {absent[name]}", flush=True)
    wanted = [name for name in args.executors if name not in absent]
    results, failures = {name: [] for name in wanted}, []
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        data, metrics = work / zeroplan.token_file_name(args.shape.vocab), work / "metrics.jsonl"
        per_step = args.gpus * args.micro_batch * args.grad_accum * args.seq_len
        # At least one step's, so that no step meets a sample twice.
        count = max(per_step, min(per_step * (args.warmup + args.steps), MAX_FILE_TOKENS)) + 1
        tokens = np.random.default_rng(1).integers(args.shape.vocab, size=count)
        zeroplan.write_tokens(data, tokens)
        if "llmq" in wanted:
            llmq.write_inputs(args, work, tokens)
        commands = {}
        for repetition in range(args.repeat):
            for executor in wanted if repetition % 2 == 0 else wanted[::-1]:
                commands[executor] = command_of(executor, args, data, metrics, work)
                print(f"[{repetition + 1}/{args.repeat}] {shlex.join(commands[executor])}",
                      file=sys.stderr, flush=True)
                try:
                    run = run_executor(executor, args, commands[executor], metrics, work)
                    results[executor].append(run)
                    print(f"{executor}: {run['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU, "
                          f"{gib(run['used_bytes'])} GiB used, loss {run['loss_first']:.3f} to "
                          f"{run['loss_last']:.3f}", flush=True)
                except (zeroplan.Failed, OSError, ValueError) as error:
                    failures.append({"executor": executor, "error": str(error)})
                    print(f"{executor}: FAILED: {error}", flush=True)
    summaries = {executor: summary(args, results[executor]) for executor in wanted}
    print_table(args, summaries, absent)
    if args.json:
        keys = ("row", "model", *DEFAULTS, "offload_ratio", "repeat", "backend")
        record = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
                  "gpus_present": gpu_names(), "zeroplan": zeroplan.version(args.binary),
                  "commit": commit(), "options": {key: getattr(args, key) for key in keys},
                  "commands": {key: shlex.join(commands[key]).replace(f"{zeroplan.ROOT}/", "")
                               for key in wanted},
                  "summary": summaries, "runs": results, "failures": failures, "not_run": absent}
        with open(args.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
