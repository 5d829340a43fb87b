#!/usr/bin/env python3
"""Trains a mixture of experts with transformers' own code on one GPU, for its speed and memory: fresh
weights, random tokens, parameters, gradients and AdamW's moments in bf16, gradients clipped at 1.
Prints one JSON line.

    python3 benchmarks/peers/mixture_train.py --model CONFIG.json --micro-batch 4 --seq-len 2048 --compile
"""
import argparse
import json
import statistics
import time

import torch
import transformers


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a config.json")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=6, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    parser.add_argument("--liger", action="store_true", help="Liger's norms, rotation and loss")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--experts", default="grouped_mm", choices=["grouped_mm", "eager"])
    return parser.parse_args()


def build(args):
    config = transformers.AutoConfig.from_pretrained(args.model)
    config.use_cache = False
    config._attn_implementation = "sdpa"
    config._experts_implementation = args.experts
    if args.liger:
        import liger_kernel.transformers as liger
        apply = getattr(liger, f"apply_liger_kernel_to_{config.model_type}")
        apply(rope=True, rms_norm=True, swiglu=False, cross_entropy=False,
              fused_linear_cross_entropy=True)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    if args.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, config


def main():
    args = parse()
    model, config = build(args)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    forward = torch.compile(model) if args.compile else model
    random = torch.Generator(device="cuda").manual_seed(1)
    shape = (args.micro_batch, args.seq_len)
    seconds, losses = [], []
    for _ in range(args.warmup + args.steps):
        tokens = torch.randint(0, config.vocab_size, shape, device="cuda", generator=random)
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    timed = seconds[args.warmup:]
    print(json.dumps({
        "params": sum(p.numel() for p in parameters), "step_seconds": timed,
        "tokens_per_second_per_gpu": args.micro_batch * args.seq_len / statistics.median(timed),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "loss_first": losses[0], "loss_last": losses[-1], "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}))


if __name__ == "__main__":
    main()
