#!/usr/bin/env python3
"""The same GPT-2 trained by Hugging Face transformers with torch.optim.AdamW, and by zeroplan.

    python3 tests/parity/compare_transformers.py                                     # CPU, seconds
    python3 tests/parity/compare_transformers.py --backend cuda --gpus 2 --stage 3
    python3 tests/parity/compare_transformers.py --backend cuda --model gpt2 --micro-batch 8
    python3 tests/parity/compare_transformers.py --backend cuda --dtype bf16

Both start from the weights that transformers saved and take the same samples in the same order,
with the same learning rate, betas, epsilon, weight decay (matrices only) and clipping. Exit code 1
if the losses differ by more than the bound:

fp32 (TF32 off): 1e-4 of the loss at any step. Both round to 24 bits, in different orders; gradients
differ by about 1e-6 of themselves, Adam's first steps go by the sign even of a gradient near zero,
and the steps that follow carry such differences on.

bf16: noise is measured on PyTorch's side: runs in fp32, under autocast, with bf16 weights and fp32
masters, and the last with other micro-batches. Each is as far from the exact curve as its rounding
takes it, at most the largest distance N between any two at any step. If zeroplan is no farther from
the exact curve than they are, it is at most 2 N from each of them (triangle inequality), so it must
be within 2 N of the run with bf16 weights and fp32 masters, which is what zeroplan does.
"""
import argparse
import copy
import itertools
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks/peers"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel
import zeroplan_run as zeroplan

MODELS = {"small": dict(n_layer=2, n_embd=64, n_head=2, n_positions=64, vocab_size=256),
          "gpt2": dict(n_layer=12, n_embd=768, n_head=12, n_positions=1024, vocab_size=50257)}
FP32_BOUND = 1e-4


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seq-len", type=int, help="default: the model's longest")
    parser.add_argument("--micro-batch", type=int, default=4, help="of zeroplan, a rank")
    parser.add_argument("--grad-accum", type=int, default=1, help="of zeroplan")
    parser.add_argument("--torch-micro-batch", type=int, help="default: zeroplan's")
    parser.add_argument("--lr", type=float, help="default: 1e-3 for small, 3e-4 for gpt2")
    parser.add_argument("--seed", type=int, default=1)
    group = parser.add_argument_group("zeroplan")
    group.add_argument("--binary", default=zeroplan.BINARY)
    group.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    group.add_argument("--gpus", type=int, default=1)
    group.add_argument("--stage", type=int, default=0)
    group.add_argument("--offload-optimizer", choices=["none", "cpu", "nvme"], default="none")
    group.add_argument("--offload-ratio", type=float)
    group.add_argument("--offload-param", choices=["none", "cpu", "nvme"], default="none")
    group.add_argument("--recompute", action="store_true")
    parser.add_argument("--torch-device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds zeroplan may take")
    parser.add_argument("--json", help="also write the curves here")
    args = parser.parse_args()
    args.seq_len = args.seq_len or MODELS[args.model]["n_positions"]
    args.lr = args.lr or (1e-3 if args.model == "small" else 3e-4)
    args.global_batch = args.micro_batch * args.grad_accum * args.gpus
    args.torch_micro_batch = args.torch_micro_batch or args.micro_batch
    if args.global_batch % args.torch_micro_batch != 0:
        parser.error(f"--torch-micro-batch {args.torch_micro_batch} does not divide the global "
                     f"batch, {args.global_batch}")
    args.adamw = {"lr": args.lr, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    return args


def make_model(args, folder):
    """Saves random weights, none of them at a value that could hide a mistake."""
    torch.manual_seed(args.seed)
    model = GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
                                       bos_token_id=None, eos_token_id=None,
                                       **MODELS[args.model]))
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() == 1:  # biases are 0 and norms 1 after initialisation
                param.add_(0.02 * torch.randn_like(param))
    model.save_pretrained(folder)


def make_optimizer(params, adamw):
    matrices = [p for p in params if p.dim() >= 2]
    vectors = [p for p in params if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": adamw["weight_decay"]},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=adamw["lr"], betas=tuple(adamw["betas"]), eps=adamw["eps"])


def train_torch(args, folder, tokens, precision, micro_batch):
    """Losses of every step. `precision`: fp32; autocast (bf16 over fp32 weights); bf16 (weights and
    compute, from fp32 masters that AdamW changes)."""
    device = torch.device(args.torch_device)
    attention = "eager" if precision == "fp32" else "sdpa"
    master = GPT2LMHeadModel.from_pretrained(folder, attn_implementation=attention,
                                             dtype=torch.float32).to(device).train()
    master_params = list(master.parameters())
    model = copy.deepcopy(master).bfloat16() if precision == "bf16" else master
    optimizer = make_optimizer(master_params, args.adamw)
    stream = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(device)
    length, share = args.seq_len, micro_batch / args.global_batch
    losses = []
    for step in range(args.steps):
        loss_sum = 0.0
        grads = [torch.zeros_like(p) for p in master_params]
        for first in range(0, args.global_batch, micro_batch):
            begins = (step * args.global_batch + first + np.arange(micro_batch)) * length
            rows = torch.stack([stream[b:b + length + 1] for b in begins.tolist()])
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "autocast"):
                logits = model(input_ids=rows[:, :-1], use_cache=False).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten()) * share
            loss.backward()
            loss_sum += loss.detach().double().item()
            for grad, param in zip(grads, model.parameters(), strict=True):
                grad.add_(param.grad)  # in fp32, whatever the model's
                param.grad = None
        for param, grad in zip(master_params, grads, strict=True):
            param.grad = grad
        torch.nn.utils.clip_grad_norm_(master_params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if precision == "bf16":
            with torch.no_grad():
                for param, exact in zip(model.parameters(), master_params, strict=True):
                    param.copy_(exact)
        losses.append(loss_sum)
    return losses


def train_zeroplan(args, folder, data, work):
    config = work / "ds_config.json"
    config.write_text(json.dumps(zeroplan.make_config(
        dtype=args.dtype, micro_batch=args.micro_batch, grad_accum=args.grad_accum,
        stage=args.stage, adamw=args.adamw, offload_optimizer=args.offload_optimizer,
        offload_ratio=args.offload_ratio, offload_param=args.offload_param,
        recompute=args.recompute, nvme_path=work,
        small=args.model == "small")))
    result = zeroplan.train(
        ["--model", folder, "--init-from", folder, "--config", config, "--data", data,
         "--no-shuffle", "--backend", args.backend, "--gpus", args.gpus, "--seq-len", args.seq_len,
         "--steps", args.steps], work / "metrics.jsonl", args.binary, args.timeout)
    return zeroplan.losses_of(result)


def difference(a, b):
    """Largest relative difference of two curves and the step (from 1) it is at; NaN counts."""
    if len(a) != len(b):
        raise SystemExit(f"{len(a)} and {len(b)} losses: one run ended early")
    relative = np.abs(np.asarray(a) - np.asarray(b)) / np.abs(np.asarray(b))
    worst = int(np.argmax(np.where(np.isnan(relative), np.inf, relative)))
    return float(relative[worst]), worst + 1


def check(args, ours, curves):
    """Prints the comparison; returns whether it holds."""
    for step in sorted({1, 2, 3, 10, 30, 100, 300, args.steps}):
        if step <= args.steps:
            print(f"step {step:5}: zeroplan {ours[step - 1]:.6f}  " + "  ".join(
                f"{name} {curve[step - 1]:.6f}" for name, curve in curves.items()))
    if args.dtype == "fp32":
        reference, bound = "fp32", FP32_BOUND
        why = "fp32"
    else:
        pairs = {(a, b): difference(curves[a], curves[b])
                 for a, b in itertools.combinations(curves, 2)}
        for (a, b), (value, step) in pairs.items():
            print(f"PyTorch {a} / {b}: {value:.2e} at step {step}")
        print("zeroplan / PyTorch fp32: {:.2e} at step {}".format(
            *difference(ours, curves["fp32"])))
        noise = max(value for value, _ in pairs.values())
        reference, bound, why = "bf16", 2 * noise, "twice the noise"
    value, step = difference(ours, curves[reference])
    holds = value <= bound
    learnt = curves[reference][-1] < 0.95 * curves[reference][0]
    print(f"zeroplan / PyTorch {reference}: largest relative difference {value:.2e} at step {step},"
          f" bound {bound:.2e} ({why}): {'ok' if holds else 'FAILED'}")
    if not learnt and args.steps >= 100:
        print("FAILED: PyTorch's loss did not fall by 5 %, so equal losses would say little")
        return False
    return holds


def main():
    args = parse()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        folder, data = work / "model", work / "tokens.bin"
        make_model(args, folder)
        # gpt2 too sees few distinct tokens: what repeats can be learnt in 100 steps.
        tokens = zeroplan.learnable_tokens(args.steps * args.global_batch * args.seq_len + 1,
                                           min(MODELS[args.model]["vocab_size"], 256), args.seed)
        zeroplan.write_tokens(data, tokens)
        try:
            ours = train_zeroplan(args, folder, data, work)
        except zeroplan.Failed as error:
            print(f"FAILED: zeroplan: {error}")
            return 1
        batch = args.torch_micro_batch
        curves = {"fp32": train_torch(args, folder, tokens, "fp32", batch)}
        if args.dtype == "bf16":
            split = batch // 2 if batch % 2 == 0 else args.global_batch
            curves["autocast"] = train_torch(args, folder, tokens, "autocast", batch)
            curves["bf16"] = train_torch(args, folder, tokens, "bf16", batch)
            curves[f"bf16 in {split}s"] = train_torch(args, folder, tokens, "bf16", split)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(
            {"options": {k: v for k, v in vars(args).items() if k != "binary"},
             "zeroplan": ours, "pytorch": curves}))
    return 0 if check(args, ours, curves) else 1


if __name__ == "__main__":
    sys.exit(main())
