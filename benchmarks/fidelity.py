#!/usr/bin/env python3
"""Compares random training runs with their prediction: step time and GPU memory.

    python3 benchmarks/fidelity.py --gpus 1 2                      # on a machine with two GPUs
    python3 benchmarks/fidelity.py --gpus 1 2 --hw mine.json --runs 48 --json fidelity.jsonl
    python3 benchmarks/fidelity.py --gpus 2 --range 12:24          # a part of the same draw
    python3 benchmarks/fidelity.py --planned --detected            # runs as `plan` chooses them
    python3 benchmarks/fidelity.py --backend cpu --tiny            # tries the script without a GPU

Draws models, batches and choices (stage, offload, recompute, accumulation) with a fixed seed, the
same for the same options and the same memory of the machine. Each choice is trained on random tokens
with `zeroplan train` for --seconds or 12 steps (8 with --planned), whichever is more; the median of the last half of the
steps counts: CUDA graphs have taken over by then, and the GPU has the clock that it keeps. Half of the
runs have steps that are small (below about 20 ms on an H200). A choice that does not fit by
`zeroplan estimate` is drawn again.

With --planned questions are drawn instead: a model up to 8B, a method, optimizer states, FP8, a
sequence of 512 to 16384 tokens, GPU memory of 12 to 70 GB, tokens a step. `zeroplan plan` answers each, and its plan is
trained.

The prediction is that of `train`, which chooses what a run leaves open (when units are gathered and
what stays gathered); `estimate` takes defaults for that. Where `train` predicts nothing (--backend
cpu), it is `estimate`'s. Without --hw the machine is measured first (`zeroplan hw measure`, a minute
or two). With --detected each run is also predicted as on a machine that nobody measured (`zeroplan hw
check`). Errors are measured / predicted - 1: above 0 the prediction was too short. Exit code 1 if a
run failed. Standard library only.
"""
import argparse
import array
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEAST_STEPS, MOST_STEPS = 12, 1000
LEAST_PLANNED_STEPS = 8  # --planned: a step takes up to seconds
SMALL_STEP_SECONDS = 0.02
# FLOPs of one GPU in a step: small runs, and all others. An H200 does about 4e14 a second.
SMALL_FLOPS, LARGE_FLOPS = (2e11, 6e12), (6e12, 2e14)
TINY_FLOPS = (1e6, 5e8)
# --planned draws from these models (billions of parameters) and FLOPs of one GPU in a step.
MODELS = {"gpt2-medium": 0.355, "qwen3-0.6b": 0.6, "llama3.2-1b": 1.24, "qwen3-1.7b": 1.72,
          "llama3.2-3b": 3.21, "qwen3-4b": 4.02, "llama3.1-8b": 8.03}
LARGEST_FULL = 4.5  # billions; the states of more do not fit on a host of 128 GiB
QUESTION_FLOPS = (1e13, 4e14)


class Failed(Exception):
    """A command ended with an error; the text holds its last lines."""


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="taken in turns")
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--range", help="FROM:TO, the part of the runs that is trained")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3, help="of training, each run, about")
    parser.add_argument("--hw", help="profile that predicts (default: measured first)")
    parser.add_argument("--detected", action="store_true",
                        help="predict each run without a profile too")
    parser.add_argument("--offload", action="store_true",
                        help="draw runs with an offloaded optimizer alone")
    parser.add_argument("--planned", action="store_true", help="draw questions, train what plan answers")
    parser.add_argument("--backend", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models that a CPU trains in a second")
    parser.add_argument("--binary", default=str(ROOT / "build/release/zeroplan"))
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one run")
    parser.add_argument("--json", help="append results, one object a line")
    parser.add_argument("--metrics", type=pathlib.Path, metavar="DIR",
                        help="keep each run's metrics there: `hw check` predicts them by other profiles")
    args = parser.parse_args()
    if args.runs < 1 or min(args.gpus) < 1:
        parser.error("--runs and --gpus: use 1 or more")
    if args.planned and (args.offload or args.tiny or args.backend == "cpu"):
        parser.error("--planned: goes without --offload, --tiny and --backend cpu")
    if args.detected and args.backend == "cpu":
        parser.error("--detected: is of GPUs; leave out --backend cpu")
    first, last = 0, args.runs
    if args.range:
        try:
            first, last = (int(part) for part in args.range.split(":"))
        except ValueError:
            parser.error(f"--range: {args.range} is not FROM:TO, such as 0:12")
    if not 0 <= first < last <= args.runs:
        parser.error(f"--range: use numbers between 0 and {args.runs} (--runs)")
    args.first, args.last = first, last
    return args


def run_command(command, timeout, cache=None):
    """What the command prints; `cache` is where it finds what `hw measure` kept."""
    command = [str(part) for part in command]
    env = dict(os.environ, ZEROPLAN_CACHE_DIR=str(cache)) if cache else None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False,
                              env=env)
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {timeout:.0f} s") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise Failed(f"exit code {done.returncode}: {' '.join(command)}\n" + "\n".join(lines[-15:]))
    return done.stdout


def draw_shape(rng, tiny):
    """Layers, hidden, heads, vocabulary; head sizes of 64 and 128."""
    if tiny:
        hidden = rng.choice([32, 64, 96])
        return dict(layers=rng.randint(1, 4), hidden=hidden, heads=hidden // 16, vocab=256)
    hidden = rng.choice([256, 512, 768, 1024, 1280, 1600, 2048])
    head = rng.choice([64, 128]) if hidden % 128 == 0 else 64
    return dict(layers=rng.randint(2, 24), hidden=hidden, heads=hidden // head,
                vocab=rng.choice([8192, 50257]))


def draw_choice(rng, gpus, offload):
    stages = [1, 2, 3] if offload else [0, 1, 2, 3] if gpus > 1 else [0, 0, 2, 3]
    stage = rng.choice(stages)
    choice = dict(stage=stage, offload_optimizer="none", offload_param="none",
                  checkpointing=rng.choice(["none", "none", "selective", "full"]))
    if stage > 0 and (offload or rng.random() < 0.3):
        choice["offload_optimizer"] = "cpu"
        if stage == 3 and rng.random() < 0.4:
            choice["offload_param"] = "cpu"
    return choice


def step_flops(run):
    """Of one GPU, about: 6 a weight of the products and token, and attention."""
    weights = run["layers"] * 12 * run["hidden"] ** 2 + run["vocab"] * run["hidden"]
    tokens = run["micro_batch"] * run["grad_accum"] * run["seq_len"]
    recompute = 4 / 3 if run["checkpointing"] == "full" else 1
    attention = 6 * run["layers"] * run["hidden"] * run["seq_len"]
    return recompute * tokens * (6 * weights + attention)


def draw(rng, index, args):
    """One run whose size is in bounds: of even indices the small ones."""
    low, high = TINY_FLOPS if args.tiny else SMALL_FLOPS if index % 2 == 0 else LARGE_FLOPS
    gpus = args.gpus[index // 2 % len(args.gpus)]
    while True:
        run = dict(gpus=gpus, **draw_shape(rng, args.tiny), **draw_choice(rng, gpus, args.offload))
        run["seq_len"] = rng.choice([16, 32, 64] if args.tiny else [128, 256, 512, 1024, 2048])
        run["micro_batch"] = rng.choice([1, 2, 3, 4, 6, 8, 16, 32])
        run["grad_accum"] = rng.choice([1, 1, 1, 2, 4])
        if low <= step_flops(run) <= high:
            return run


def draw_question(rng, index, args):
    """A question for `plan`."""
    while True:
        method = rng.choice(["full", "full", "lora", "qlora"])
        model = rng.choice([name for name, size in MODELS.items() if method != "full" or size < LARGEST_FULL])
        question = dict(gpus=args.gpus[index % len(args.gpus)], model=model, method=method,
                        seq_len=1 << rng.randint(9, 14), gpu_memory=f"{rng.randint(12, 70)}GB",
                        matmul_dtype=rng.choice(["bf16", "bf16", "fp8"]) if method != "qlora" else "bf16",
                        optimizer_states="fp32", master_weights="fp32")
        if model == "gpt2-medium":
            question["seq_len"] = min(question["seq_len"], 1024)
        if method == "full" and rng.random() < 0.5:
            question.update(optimizer_states=rng.choice(["bf16", "8bit"]), master_weights=rng.choice(["fp32", "bf16"]))
        question["sequences"] = question["gpus"] * (1 << rng.randint(0, 7))
        tokens = question["sequences"] * question["seq_len"] // question["gpus"]
        if QUESTION_FLOPS[0] <= 6e9 * MODELS[model] * tokens <= QUESTION_FLOPS[1]:
            return question


def question_options(run):
    return ["--model", run["model"], "--gpus", run["gpus"], "--seq-len", run["seq_len"], "--dtype", "bf16",
            "--global-batch", run["sequences"], "--gpu-memory", run["gpu_memory"], "--method", run["method"],
            "--matmul-dtype", run["matmul_dtype"], "--optimizer-states", run["optimizer_states"],
            "--master-weights", run["master_weights"]]


def options(run, config):
    """Options of estimate and train; with --planned `config` is the plan."""
    if "model" in run:
        return ["--plan", config]
    return ["--model", config, "--gpus", run["gpus"], "--seq-len", run["seq_len"],
            "--micro-batch", run["micro_batch"], "--grad-accum", run["grad_accum"], "--dtype",
            "bf16", "--stage", run["stage"], "--offload-optimizer", run["offload_optimizer"],
            "--offload-param", run["offload_param"], "--checkpointing", run["checkpointing"]]


def write_model(path, run):
    path.write_text(json.dumps({
        "model_type": "gpt2", "n_layer": run["layers"], "n_embd": run["hidden"],
        "n_head": run["heads"], "n_positions": run["seq_len"], "vocab_size": run["vocab"],
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}))


def write_tokens(path, count, vocab, rng):
    """As text/files/token_file.h describes: a .bin with a header, or a bare .u32."""
    if path.suffix == ".u32":
        with open(path, "wb") as file:
            array.array("I", rng.choices(range(vocab), k=count)).tofile(file)
        return
    header = array.array("i", [20240520, 1, count] + [0] * 253)
    tokens = array.array("H", rng.choices(range(vocab), k=count))
    if sys.byteorder == "big":
        header.byteswap()
        tokens.byteswap()
    with open(path, "wb") as file:
        header.tofile(file)
        tokens.tofile(file)


def estimate(args, run, config):
    text = run_command([args.binary, "estimate", *options(run, config), "--hw", args.hw,
                        "--format", "json"], args.timeout)
    choices = json.loads(text)["choices"]
    if len(choices) != 1:
        raise Failed(f"estimate gave {len(choices)} choices for one")
    return choices[0]


def predict_unmeasured(args, metrics, work):
    """Seconds of a step of what ran, on a machine where `hw measure` kept nothing."""
    table = run_command([args.binary, "hw", "check", metrics, "--format", "markdown"], args.timeout,
                        work / "empty").splitlines()
    names, row = (table[line].split("|") for line in (0, 2))
    column = next(i for i, name in enumerate(names) if "step, ms: predicted" in name)
    return float(row[column]) / 1e3


def train(args, run, config, steps, data, metrics):
    command = [args.binary, "train", *options(run, config), "--data", data, "--no-shuffle",
               "--backend", args.backend, "--steps", steps, "--lr", "1e-4", "--metrics", metrics]
    if args.backend == "cuda":
        command += ["--hw", args.hw]
    if args.planned:
        command += ["--gpu-memory", run["gpu_memory"]]
        command += ["--fresh-weights"] if run["method"] != "full" else []
    run_command(command, args.timeout)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    start = next(line for line in lines if line["event"] == "start")
    end = next(line for line in lines if line["event"] == "end")
    seconds = [line["step_seconds"] for line in lines if line["event"] == "step"]
    if len(seconds) != steps:
        raise Failed(f"{len(seconds)} steps instead of {steps}")
    if args.planned:
        run.update(start["plan"])
    return dict(step_seconds=statistics.median(seconds[steps // 2:]), steps=steps,
                device_used_bytes=end["device_used_bytes"],
                predicted_step_seconds=start["predicted"]["step_seconds"],
                predicted_device_bytes=start["planned_bytes"]["gpu"]["total"])


def draw_fitting(rng, index, args, work):
    """A drawn run that is estimated to fit, its model's file or plan, and seconds and bytes of it."""
    config = work / f"model{index}.json"
    if args.planned:
        for _ in range(20):
            run = draw_question(rng, index, args)
            try:
                run_command([args.binary, "plan", *question_options(run), "--hw", args.hw, "--plan-out", config],
                            args.timeout)
            except Failed as failure:
                if "exit code 3:" not in str(failure):  # anything but that nothing fits
                    raise
                continue
            predicted = json.loads(config.read_text())["predicted"]
            return run, config, predicted["step_seconds"]["total"], predicted["gpu_bytes"]["total"]
        raise Failed("20 questions in a row have no plan that fits")
    for _ in range(100):
        run = draw(rng, index, args)
        write_model(config, run)
        estimated = estimate(args, run, config)
        if estimated["fits"]:
            return run, config, estimated["step_seconds"]["total"], estimated["gpu_bytes"]["total"]
    raise Failed("100 draws in a row do not fit")


def error(predicted, measured):
    """By how much more was measured than predicted, as a share of the prediction."""
    return measured / predicted - 1 if predicted and measured is not None else None


def percent(value):
    return "-" if value is None else f"{100 * value:+.1f}%"


def choice(run):
    """A question has none before it ran: "-"."""
    if "stage" not in run:
        return "-"
    text = f"stage {run['stage']}"
    if run["offload_optimizer"] != "none":
        text += " opt-cpu"
    if run["offload_param"] != "none":
        text += " param-cpu"
    if run["checkpointing"] != "none":
        text += f" {run['checkpointing']}"
    return text + f", {run['micro_batch']}x{run['grad_accum']} of {run['seq_len']}"


def label(run):
    if "model" in run:
        return (f"{run['model']} {run['method']} {run['matmul_dtype']}, states {run['master_weights']}/"
                f"{run['optimizer_states']}, {run['sequences']} x {run['seq_len']}, {run['gpu_memory']}: " + choice(run))
    return f"{run['layers']}x{run['hidden']}/{run['heads']}h v{run['vocab']} " + choice(run)


def summarise(title, errors):
    errors = [value for value in errors if value is not None]
    if not errors:
        return
    absolute = [abs(value) for value in errors]
    print(f"{title:<34} {len(errors):>4} {percent(statistics.mean(errors)):>8} "
          f"{100 * statistics.mean(absolute):>7.1f}% {100 * statistics.median(absolute):>7.1f}% "
          f"{percent(max(errors, key=abs)):>8}")


def offloads(run):
    return run["offload_optimizer"] != "none" or run["offload_param"] != "none"


def report(results):
    print(f"\n{'measured / predicted - 1':<34} {'runs':>4} {'mean':>8} {'|mean|':>8} {'|median|':>8} "
          f"{'worst':>8}")
    groups = [("step time, all", lambda r: True),
              ("  steps below 20 ms", lambda r: r["step_seconds"] < SMALL_STEP_SECONDS),
              ("  steps from 20 ms", lambda r: r["step_seconds"] >= SMALL_STEP_SECONDS),
              ("  with offload", lambda r: offloads(r["run"])),
              ("  without offload", lambda r: not offloads(r["run"])),
              ("  with accumulation", lambda r: r["run"].get("grad_accum", 1) > 1)]
    groups += [(f"  {method}", lambda r, method=method: r["run"].get("method") == method)
               for method in ("full", "lora", "qlora")]
    groups += [(f"  on {gpus} GPU{'' if gpus == 1 else 's'}", lambda r, gpus=gpus: r["run"]["gpus"] == gpus)
               for gpus in sorted({r["run"]["gpus"] for r in results})]
    for title, belongs in groups:
        summarise(title, [r["step_error"] for r in results if belongs(r)])
    summarise("  without a measured profile", [r["detected_error"] for r in results])
    summarise("GPU memory, all", [r["memory_error"] for r in results])


def measure_machine(args, work):
    args.hw = str(work / "machine.json")
    print(f"Measuring {max(args.gpus)} GPU(s) first, about two minutes ...", flush=True)
    run_command([args.binary, "hw", "measure", "--gpus", max(args.gpus), "-o", args.hw], 900)


def main():
    args = parse()
    results, failures = [], 0
    if args.metrics:
        args.metrics.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if args.hw is None:
            if args.backend == "cpu":
                args.hw = "hgx-h200"  # no GPU runs: the errors mean nothing
            else:
                measure_machine(args, work)
        elif args.hw.endswith(".json"):
            args.hw = str(pathlib.Path(args.hw).resolve())
        print(f"{'run':>3} {'GPUs':>4} {'step, ms':>9} {'predicted':>9} {'error':>7} {'GB':>7} "
              f"{'predicted':>9} {'error':>7}  what", flush=True)
        for index in range(args.first, args.last):
            rng = random.Random(f"{args.seed}:{index}")
            try:
                run, config, seconds, bytes_ = draw_fitting(rng, index, args, work)
            except Failed as failure:
                failures += 1
                print(f"{index:>3} failed: {failure}", flush=True)
                continue
            data = work / f"data{index}.{'u32' if args.planned else 'bin'}"
            metrics = (args.metrics or work) / f"metrics{index}.jsonl"
            sequences = run["sequences"] if args.planned else run["gpus"] * run["micro_batch"] * run["grad_accum"]
            write_tokens(data, min(LEAST_STEPS * sequences * run["seq_len"] + 1, 1 << 20), run.get("vocab", 50257), rng)
            wanted = math.ceil(args.seconds / seconds)
            least = LEAST_PLANNED_STEPS if args.planned else LEAST_STEPS
            steps = min(max(wanted, least), MOST_STEPS)
            try:
                result = train(args, run, config, steps, data, metrics)
            except Failed as failure:
                failures += 1
                print(f"{index:>3} {run['gpus']:>4} failed: {label(run)}\n{failure}", flush=True)
                continue
            finally:
                data.unlink()
            if result["predicted_step_seconds"] is None:
                result.update(predicted_step_seconds=seconds, predicted_device_bytes=bytes_)
            seconds, bytes_ = result["predicted_step_seconds"], result["predicted_device_bytes"]
            try:
                unmeasured = predict_unmeasured(args, metrics, work) if args.detected else None
            except Failed as failure:
                failures += 1
                print(f"{index:>3} without a profile: {failure}", flush=True)
                unmeasured = None
            result.update(index=index, run=run, hw=args.hw,
                          step_error=error(seconds, result["step_seconds"]),
                          detected_error=error(unmeasured, result["step_seconds"]),
                          memory_error=error(bytes_, result["device_used_bytes"]))
            results.append(result)
            used = result["device_used_bytes"]
            used_text = "-" if used is None else f"{used / 1e9:.2f}"
            print(f"{index:>3} {run['gpus']:>4} {1e3 * result['step_seconds']:>9.2f} "
                  f"{1e3 * seconds:>9.2f} {percent(result['step_error']):>7} "
                  f"{used_text:>7} {bytes_ / 1e9:>9.2f} "
                  f"{percent(result['memory_error']):>7}  {label(run)}"
                  + (f"; {percent(result['detected_error'])} without a profile" if args.detected else ""),
                  flush=True)
            if args.json:
                with open(args.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
    if results:
        report(results)
    if failures:
        print(f"{failures} runs failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
