#!/usr/bin/env python3
"""LoRA and QLoRA: `zeroplan train --method lora` beside PEFT over transformers with Liger's kernels.

    python3 benchmarks/lora_benchmark.py                       # Llama 3.1 8B, 2 sequences of 4096
    python3 benchmarks/lora_benchmark.py --model llama3.2-1b --micro-batch 4 --repeat 3
    python3 benchmarks/lora_benchmark.py --method qlora --seq-len 2048 --gpu-memory 12.6
    python3 benchmarks/lora_benchmark.py --model llama3.1-70b --gpus 2 --seq-len 2048 --rows selective recompute

Needs torch, transformers, peft and, unless --no-liger, liger_kernel; for QLoRA bitsandbytes, too, whose NF4
with double quantization PEFT has. On several GPUs zeroplan runs stage 3 and PEFT's model is sharded by FSDP2, a group
a layer, gathered anew for the backward pass; its adapters are in bf16 there, as a group has one dtype. QLoRA runs
beside PEFT on one GPU only. --gpu-memory holds both to so many GB: PEFT's allocator, and zeroplan's
plan, which must then fit as the row says. Both have random weights of the
preset's shape, rank --rank on all linears of the layers, bf16, AdamW in fp32 over the adapters (PEFT's
have fp32 weights, as it makes them under autocast), and random tokens. Each row runs in a process of
its own, the two programs in turn, --repeat times; the median step of each run counts, and the median
of the runs is printed, with the GPU memory that was in use. zeroplan's rows also print what was
predicted.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import shapes  # noqa: E402
import zeroplan_run as zeroplan  # noqa: E402

ROWS = {"keep": ("none", False), "selective": ("selective", None), "recompute": ("full", True)}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3.1-8b", help="preset of Llama's kind")
    parser.add_argument("--method", choices=["lora", "qlora"], default="lora")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--gpu-memory", type=float, help="GB that both are held to")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--only", choices=["zeroplan", "peft"])
    parser.add_argument("--no-liger", action="store_true")
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--python", default=sys.executable, help="one that has PEFT")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one run")
    parser.add_argument("--json", help="append results, one object a line")
    parser.add_argument("--as-peft", choices=["keep", "recompute"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gpus > 1 and args.method == "qlora" and args.only != "zeroplan":
        parser.error("--method qlora runs beside PEFT on one GPU only; give --only zeroplan")
    return args


def quantized(config, transformers, torch):
    """A model with random weights, the linears of its layers in NF4, without ever being whole in 16 bit."""
    import bitsandbytes
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)

    def drawn(shape):
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda") * 0.02

    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if not isinstance(linear, torch.nn.Linear):
                    continue
                made = bitsandbytes.nn.LinearNF4(linear.in_features, linear.out_features, bias=False,
                                                 compute_dtype=torch.bfloat16, device="meta")
                made.weight = bitsandbytes.nn.Params4bit(
                    drawn(linear.weight.shape).cpu(), requires_grad=False, quant_type="nf4",
                    compress_statistics=True).to("cuda")
                setattr(block, name, made)
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            if value.device.type == "meta":
                fresh = drawn(value.shape) if value.dim() > 1 else torch.ones(
                    value.shape, dtype=torch.bfloat16, device="cuda")
                setattr(module, name, torch.nn.Parameter(fresh))
    model.tie_weights()
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config, device="cuda")
    model.is_loaded_in_4bit = model.is_quantized = True
    return model


def sharded(model, config, torch):
    """By FSDP2, with random weights. The model is on the device "meta"."""
    from torch.distributed.fsdp import fully_shard
    inner = model.get_base_model().model
    for layer in inner.layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cuda")
    for name, value in model.named_parameters():
        with torch.no_grad():
            if "lora_B" in name:
                value.zero_()
            elif value.dim() > 1:
                value.normal_(0, 0.02)
            else:
                value.fill_(1)
    inner.rotary_emb = type(inner.rotary_emb)(config, device="cuda")
    return model


def run_peft(args):
    """In a process of its own for each GPU: the first prints one JSON object."""
    import peft
    import torch
    import transformers
    shape = shapes.load_shape(args.model)
    if not args.no_liger:
        from liger_kernel.transformers import apply_liger_kernel_to_llama
        apply_liger_kernel_to_llama()
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_size, use_cache=False,
        max_position_embeddings=131072, tie_word_embeddings=shape.tied)
    config._attn_implementation = "sdpa"
    several = args.gpus > 1
    if several:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
    if args.gpu_memory:
        torch.cuda.set_per_process_memory_fraction(
            args.gpu_memory * 1e9 / torch.cuda.mem_get_info()[1])
    recompute = args.as_peft == "recompute"
    if args.method == "qlora":
        model = peft.prepare_model_for_kbit_training(
            quantized(config, transformers, torch), use_gradient_checkpointing=recompute,
            gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta" if several else "cuda"):
            model = transformers.LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM"),
        autocast_adapter_dtype=not several)
    if several:
        model = sharded(model, config, torch)
    model.train()
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    update = torch.optim.AdamW(trained, 1e-4, fused=True)
    seconds = []
    for _ in range(args.warmup + args.steps):
        tokens = torch.randint(0, shape.vocab, (args.micro_batch, args.seq_len), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        update.step()
        update.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    free, total = torch.cuda.mem_get_info()
    if several:
        first = torch.distributed.get_rank() == 0
        torch.distributed.destroy_process_group()
        if not first:
            return
    print(json.dumps({"step_seconds": statistics.median(seconds[args.warmup:]),
                      "used_bytes": total - free}))


def by_peft(args, row):
    python = zeroplan.torchrun(args.python, args.gpus) if args.gpus > 1 else [args.python]
    command = [*python, __file__, "--as-peft", row]
    for name in ("model", "method", "rank", "gpus", "micro_batch", "seq_len", "steps", "warmup"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    if args.gpu_memory:
        command += ["--gpu-memory", str(args.gpu_memory)]
    if args.no_liger:
        command.append("--no-liger")
    return json.loads(zeroplan.run_command(command, args.timeout).strip().splitlines()[-1])


def by_zeroplan(args, row, work):
    steps = args.warmup + args.steps
    result = zeroplan.train(
        ["--model", args.model, "--fresh-weights", "--data", work / "tokens.u32", "--no-shuffle",
         "--method", args.method, "--lora-rank", args.rank, "--stage", 3 if args.gpus > 1 else 0,
         "--offload-optimizer", "none",
         "--offload-param", "none", "--checkpointing", ROWS[row][0], "--gpus", args.gpus, "--seq-len",
         args.seq_len, "--micro-batch", args.micro_batch, "--grad-accum", 1, "--dtype", "bf16",
         "--lr", 1e-4, "--steps", steps,
         *(["--gpu-memory", f"{args.gpu_memory}GB"] if args.gpu_memory else [])], work / "metrics.jsonl", args.binary, args.timeout)
    seconds = [step["step_seconds"] for step in result["steps"][args.warmup:]]
    return {"step_seconds": statistics.median(seconds),
            "used_bytes": result["end"]["device_used_bytes"],
            "planned_bytes": result["start"]["planned_bytes"]["gpu"]["total"]}


def main():
    args = parse()
    if args.as_peft:
        return run_peft(args)
    tokens = args.gpus * args.micro_batch * args.seq_len
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        vocab = shapes.load_shape(args.model).vocab
        count = tokens * (args.warmup + args.steps) + 1
        zeroplan.write_tokens(work / "tokens.u32",
                              np.random.default_rng(1).integers(vocab, size=count))
        runs = {}
        for _ in range(args.repeat):
            for row in args.rows:
                if args.only != "peft":
                    runs.setdefault((row, "zeroplan"), []).append(by_zeroplan(args, row, work))
                if args.only != "zeroplan" and ROWS[row][1] is not None:
                    runs.setdefault((row, "peft"), []).append(by_peft(args, row))
    where = "" if args.gpus == 1 else f" a GPU, {args.gpus} GPUs"
    print(f"{args.model}, {args.method}, rank {args.rank}, {args.micro_batch} x {args.seq_len} tokens{where}, "
          f"{args.repeat} run(s); {zeroplan.version(args.binary).splitlines()[0]}")
    print(f"{'row':<10} {'program':<9} {'tokens/s':>9} {'GB in use':>10} {'GB planned':>11}")
    for (row, program), results in runs.items():
        middle = statistics.median(result["step_seconds"] for result in results)
        most = max(result["used_bytes"] for result in results)
        planned = results[0].get("planned_bytes")
        print(f"{row:<10} {program:<9} {tokens / middle:9.0f} {most / 1e9:10.1f} "
              f"{'' if planned is None else f'{planned / 1e9:11.1f}'}")
        if args.json:
            with open(args.json, "a") as file:
                file.write(json.dumps({"row": row, "program": program, "model": args.model,
                                       "method": args.method,
                                       "tokens_per_second": tokens / middle,
                                       "runs": results}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
