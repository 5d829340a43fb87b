#!/usr/bin/env python3
"""One small model trained by zeroplan at every ZeRO stage and offload choice: curves must agree.

    python3 tests/parity/matrix.py                                     # CPU backend, 1 and 2 ranks
    python3 tests/parity/matrix.py --backend cuda --gpus 1 2 4 --dtype fp32 bf16
    python3 tests/parity/matrix.py --only stage3 --grad-accum 1          # part of it

All runs see the same samples in each step: the global batch stays, the micro-batch is what GPUs and
accumulation leave of it. Each is compared with stage 0 on one GPU without accumulation, of the same
dtype. Exit code 1 if one fails or is off by more than its bound:

fp32: 1e-5 of the loss at any step. The runs differ in the order of sums alone (over micro-steps and
ranks, each off by about 1e-7 of its terms), which AdamW's sqrt(v) of small gradients and the steps
that follow amplify; a gradient lost, doubled or a step late moves a loss by far more.

bf16: gradients are rounded to 8 bits wherever they are added or sent, so runs differ by what bf16
costs. N, the largest distance of stage 0's curve in bf16 to the one in fp32, measures that cost.
Another choice is as far from fp32, by another rounding of the same kind; two such are at most 2 N
apart (triangle inequality).
"""
import argparse
import itertools
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks/peers"))

import zeroplan_run as zeroplan

FP32_BOUND = 1e-5
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--grad-accum", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="of the choices, those whose name has this")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--timeout", type=float, default=300, help="seconds a run may take")
    parser.add_argument("--json", help="also write all curves here")
    args = parser.parse_args()
    for gpus, accum in itertools.product(args.gpus, args.grad_accum):
        if args.global_batch % (gpus * accum) != 0:
            parser.error(f"--global-batch {args.global_batch}: not a multiple of {gpus} GPUs x "
                         f"{accum} micro-steps")
    return args


def choices():
    """Name and options of every stage, place of the optimizer and place of the parameters."""
    for stage in range(4):
        optimizers = [("none", None)]
        if stage >= 1:
            optimizers += [("cpu", None), ("cpu", 0.5), ("nvme", None)]
        params = ["none", "cpu", "nvme"] if stage == 3 else ["none"]
        for (device, ratio), param in itertools.product(optimizers, params):
            name = f"stage{stage}"
            if device != "none":
                name += f" optimizer:{device}" + (f"/{ratio}" if ratio else "")
            if param != "none":
                name += f" params:{param}"
            yield name, {"stage": stage, "offload_optimizer": device, "offload_ratio": ratio,
                         "offload_param": param}
    for stage in (0, 3):
        yield f"stage{stage} recompute", {"stage": stage, "recompute": True}


def model_config(args):
    return {"model_type": "gpt2", "activation_function": "gelu_new", "n_layer": args.layers,
            "n_embd": args.hidden, "n_head": args.heads, "n_positions": args.seq_len,
            "vocab_size": args.vocab, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


class Runner:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.model = work / "config.json"
        self.model.write_text(json.dumps(model_config(args)))
        self.data = work / "tokens.bin"
        count = args.steps * args.global_batch * args.seq_len + 1
        zeroplan.write_tokens(self.data, zeroplan.learnable_tokens(count, args.vocab, args.seed))

    def losses(self, dtype, gpus, accum, choice):
        """Raises Failed if the run does."""
        args = self.args
        config = self.work / "ds_config.json"
        config.write_text(json.dumps(zeroplan.make_config(
            dtype=dtype, micro_batch=args.global_batch // (gpus * accum), grad_accum=accum,
            adamw=ADAMW, nvme_path=self.work, small=True, **choice)))
        result = zeroplan.train(
            ["--model", self.model, "--config", config, "--data", self.data, "--no-shuffle",
             "--seq-len", args.seq_len, "--backend", args.backend, "--gpus", gpus,
             "--steps", args.steps, "--seed", args.seed],
            self.work / "metrics.jsonl", args.binary, args.timeout)
        losses = zeroplan.losses_of(result)
        if len(losses) != args.steps:
            raise zeroplan.Failed(f"{len(losses)} steps instead of {args.steps}")
        return losses


def difference(a, b):
    """Largest relative difference and its step, from 1; NaN counts as infinite."""
    worst = (0.0, 1)
    for step, (x, y) in enumerate(zip(a, b, strict=True), 1):
        value = abs(x - y) / abs(y)
        if not value <= worst[0]:
            worst = (value if value == value else float("inf"), step)
    return worst


def references(args, runner):
    """Stage 0's curve and the bound, by dtype."""
    plain = {"stage": 0}
    exact = runner.losses("fp32", 1, 1, plain)
    if not exact[-1] < 0.95 * exact[0]:
        raise zeroplan.Failed(f"stage 0 in fp32 does not learn: {exact[0]} to {exact[-1]}; equal "
                              "curves would say little (more --steps?)")
    print(f"stage 0, fp32, 1 GPU: loss {exact[0]:.4f} to {exact[-1]:.4f} in {args.steps} steps")
    result = {"fp32": (exact, FP32_BOUND)}
    if "bf16" in args.dtype:
        coarse = runner.losses("bf16", 1, 1, plain)
        noise, step = difference(coarse, exact)
        if not noise < 0.02:
            raise zeroplan.Failed(f"stage 0 in bf16 is off fp32 by {noise:.1e} at step {step}: too "
                                  "far to be rounding")
        print(f"stage 0, bf16 to fp32: at most {noise:.1e}, at step {step}")
        result["bf16"] = (coarse, 2 * noise)
    return result


def main():
    args = parse()
    failures, rows = 0, []
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(args, pathlib.Path(name))
        try:
            reference = references(args, runner)
        except zeroplan.Failed as error:
            print(f"FAILED: {error}")
            return 1
        print(f"\n{'dtype':5} {'GPUs':>4} {'accum':>5}  {'choice':38} {'off by':>8} {'at':>4} "
              f"{'bound':>8}")
        for dtype, gpus, accum, (label, choice) in itertools.product(
                args.dtype, args.gpus, args.grad_accum, choices()):
            if args.only not in label:
                continue
            losses, bound = None, reference[dtype][1]
            start = f"{dtype:5} {gpus:4} {accum:5}  {label:38}"
            try:
                losses = runner.losses(dtype, gpus, accum, choice)
                value, step = difference(losses, reference[dtype][0])
                ok = value <= bound
                print(f"{start} {value:8.1e} {step:4} {bound:8.1e} {'ok' if ok else 'FAILED'}",
                      flush=True)
            except zeroplan.Failed as error:
                ok = False
                print(f"{start} FAILED: {error}", flush=True)
            failures += not ok
            rows.append({"dtype": dtype, "gpus": gpus, "grad_accum": accum, "choice": label,
                         "losses": losses, "ok": ok})
    print(f"\n{len(rows)} runs, {failures} failed")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows))
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
