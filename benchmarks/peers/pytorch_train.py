#!/usr/bin/env python3
"""Trains a GPT-2 or a Llama-style model on random tokens, for its speed and memory: with PyTorch
alone, by DDP or FSDP2, its layers' products in FP8 by torchao, or with DeepSpeed. Both have to be
importable where they are used.

    python3 benchmarks/peers/pytorch_train.py --model gpt2 --micro-batch 32
    torchrun --nproc-per-node 4 benchmarks/peers/pytorch_train.py --model gpt2-xl \
        --mode fsdp2-zero2 --micro-batch 16
    torchrun --nproc-per-node 1 benchmarks/peers/pytorch_train.py --model llama3.1-8b \
        --mode deepspeed --stage 3 --offload-optimizer cpu --offload-param cpu --recompute

Master parameters and AdamW states are fp32, compute is bf16: by autocast (ddp), FSDP2's mixed
precision or DeepSpeed's bf16 section. Rank 0 prints one JSON line. A step's seconds are those of the
slowest rank, from the batch to the updated weights with the device idle before and after.
"""
import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpt2_model import Gpt2
from llama_model import Block, Llama, compile_parts
from shapes import Gpt2Shape, H200_BF16_PEAK, load_shape

SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="preset, config.json or folder with one")
    parser.add_argument("--mode", choices=["ddp", "fsdp2-zero2", "fsdp2-zero3", "deepspeed"],
                        default="ddp")
    parser.add_argument("--micro-batch", type=int, default=8, help="sequences a GPU and micro-step")
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--recompute", action="store_true", help="recompute every block")
    parser.add_argument("--offload", action="store_true",
                        help="FSDP2 keeps parameters, gradients and optimizer in host memory")
    parser.add_argument("--stage", type=int, choices=range(4), default=2, help="DeepSpeed's")
    parser.add_argument("--offload-optimizer", choices=["none", "cpu"], default="none",
                        help="DeepSpeed's")
    parser.add_argument("--offload-param", choices=["none", "cpu"], default="none",
                        help="DeepSpeed's, at stage 3")
    parser.add_argument("--alst", action="store_true",
                        help="DeepSpeed's for long sequences (ALST, arXiv 2506.13996), for Llama-style "
                             "models: tiled MLPs and loss, inputs of blocks, recomputed, in host memory")
    parser.add_argument("--sequence-ranks", type=int, default=1, metavar="RANKS",
                        help="with --alst: all ranks share each sequence, by DeepSpeed's Ulysses")
    parser.add_argument("--attention-window", type=int, default=0, metavar="TOKENS",
                        help="attention within pieces of so many tokens: a step's memory, not its time")
    parser.add_argument("--float8", choices=["tensorwise", "rowwise"],
                        help="torchao's recipe for the layers' linears")
    parser.add_argument("--allocator-limit", type=float, metavar="GIB",
                        help="what PyTorch's allocator may take of a GPU; CUDA's context comes on top")
    parser.add_argument("--reduce-dtype", choices=["bf16", "fp32"], default="fp32", help="FSDP2's")
    parser.add_argument("--accum-sync", choices=["each", "last"], default=None,
                        help="reduce gradients each micro-step or with the last "
                             "(default: last for ddp, each for FSDP2, which keeps them sharded)")
    parser.add_argument("--compile", choices=["auto", "whole", "block", "parts", "none"],
                        default="auto",
                        help="auto: whole for a GPT-2 of up to 24 layers under ddp; of a Llama-style "
                             "model at DeepSpeed's stage 3, whose hooks break graphs between any two "
                             "modules, the pointwise parts and the loss; else a block at a time and "
                             "the loss")
    parser.add_argument("--compile-mode", default="default")
    parser.add_argument("--sdpa", choices=["auto", "default", *SDPA], default="auto",
                        help="auto: the faster of flash and cudnn at this shape")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cuda", "cpu"],
                        default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.shape = load_shape(args.model)
    llama = not isinstance(args.shape, Gpt2Shape)
    if not llama and args.seq_len > args.shape.positions:
        parser.error(f"--seq-len {args.seq_len}: {args.model} has {args.shape.positions} positions")
    if args.offload and not args.mode.startswith("fsdp2"):
        parser.error("--offload needs --mode fsdp2-zero2 or fsdp2-zero3")
    if args.mode != "deepspeed" and (args.offload_optimizer, args.offload_param) != ("none",) * 2:
        parser.error("--offload-optimizer and --offload-param need --mode deepspeed")
    if args.float8 and args.mode == "deepspeed":
        parser.error("--float8 needs --mode ddp, fsdp2-zero2 or fsdp2-zero3")
    if args.float8 and importlib.util.find_spec("torchao") is None:
        parser.error(f"--float8 needs torchao; {sys.executable} -m pip install torchao")
    if args.alst and (args.mode != "deepspeed" or not llama or args.recompute):
        parser.error("--alst needs --mode deepspeed and a Llama-style model, and recomputes blocks itself")
    args.rank_tokens = args.seq_len // args.sequence_ranks
    if args.sequence_ranks > 1 and (not args.alst or args.seq_len % args.sequence_ranks
                                    or args.sequence_ranks != int(os.environ.get("WORLD_SIZE", 1))):
        parser.error("--sequence-ranks needs --alst, to be all ranks, and to divide --seq-len")
    if args.attention_window and (not llama or args.seq_len % args.attention_window):
        parser.error("--attention-window needs a Llama-style model, and to divide --seq-len")
    if args.offload_param != "none" and args.stage != 3:
        parser.error("--offload-param needs --stage 3")
    if args.compile == "whole" and args.mode != "ddp":
        parser.error("--compile whole needs --mode ddp: hooks of the others sit between blocks")
    if args.steps < 1 or args.warmup < 0:
        parser.error("--steps must be at least 1, --warmup at least 0")
    if args.compile == "auto":
        if not llama and args.shape.layers <= 24 and args.mode == "ddp" and not args.recompute:
            args.compile = "whole"
        elif llama and args.mode == "deepspeed" and (args.stage == 3 or args.alst):
            args.compile = "parts"
        else:
            args.compile = "block"
    if args.compile == "parts" and not llama:
        parser.error("--compile parts is for Llama-style models")
    if args.accum_sync is None:
        args.accum_sync = "last" if args.mode == "ddp" else "each"
    return args


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose_sdpa(args, device):
    """Times attention at the model's shape; returns the name of the faster backend."""
    if args.sdpa != "auto":
        return args.sdpa
    if device.type != "cuda":
        return "default"
    shape = args.shape
    parts = (shape.heads, shape.kv_heads, shape.kv_heads)
    size = (args.micro_batch, args.seq_len, sum(parts), shape.head_size)
    seconds = {}
    for name in ("flash", "cudnn"):
        try:
            qkv = torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True)
            times = []
            with sdpa_kernel(SDPA[name]):
                for _ in range(8):
                    synchronize(device)
                    begin = time.perf_counter()
                    q, k, v = (part.transpose(1, 2) for part in qkv.split(parts, 2))
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                       enable_gqa=shape.heads != shape.kv_heads)
                    y.backward(torch.ones_like(y))
                    synchronize(device)
                    times.append(time.perf_counter() - begin)
            seconds[name] = min(times[3:])
        except RuntimeError as error:
            print(f"sdpa {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return min(seconds, key=seconds.get) if seconds else "default"


def use_sdpa(name):
    """For the whole process, so that compiled graphs take it too."""
    if name == "default":
        return
    torch.backends.cuda.enable_flash_sdp(name == "flash")
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(name == "efficient")
    torch.backends.cuda.enable_math_sdp(name == "math")


def make_model(shape):
    return Gpt2(shape) if isinstance(shape, Gpt2Shape) else Llama(shape)


def windowed(args):
    """What is only for memory must not be taken for a speed."""
    Block.attention_window = args.attention_window
    return {"attention_window": args.attention_window} if args.attention_window else {}


def use_float8(model, args):
    """Before the model is compiled or sharded. The head, outside blocks, stays as it is."""
    if args.float8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        config = Float8LinearConfig.from_recipe_name(args.float8)
        if gathers_float8(args):
            config = dataclasses.replace(config, enable_fsdp_float8_all_gather=True)
        convert_to_float8_training(model.blocks, config=config)


def gathers_float8(args):
    """torchao has that for this recipe alone."""
    return args.float8 == "tensorwise" and args.mode.startswith("fsdp2")


def compile_functions(model, args):
    """The loss, and what is compiled apart from modules."""
    options = {"mode": args.compile_mode, "fullgraph": True, "dynamic": False}
    if args.compile in ("block", "parts"):
        model.head_loss = torch.compile(model.head_loss, **options)
    if args.compile == "parts":
        compile_parts(**options)


def wrap_blocks(model, args):
    """Recompute inside, compile outside it: the order that lets the compiler see both."""
    for index, block in enumerate(model.blocks):
        if args.recompute:
            from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
                checkpoint_wrapper)
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        if args.compile == "block":
            block.compile(mode=args.compile_mode, fullgraph=True, dynamic=False)
        model.blocks[index] = block
    compile_functions(model, args)


def build_ddp(args, device, world):
    with torch.device(device):
        model = make_model(args.shape)
    model.init_weights(args.seed)
    use_float8(model, args)
    wrap_blocks(model, args)
    params = list(model.named_parameters())
    run = model
    if world > 1:
        ids = [device.index] if device.type == "cuda" else None
        run = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=ids, gradient_as_bucket_view=True, static_graph=args.recompute)
    if args.compile == "whole":  # outside DDP, so that the graph is split where buckets end
        run = torch.compile(run, mode=args.compile_mode, dynamic=False)
    return run, model, params


def build_fsdp(args, device, rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh(device.type, (world,))
    reduce_dtype = torch.bfloat16 if args.reduce_dtype == "bf16" else torch.float32
    options = {"mesh": mesh, "reshard_after_forward": args.mode == "fsdp2-zero3",
               "mp_policy": MixedPrecisionPolicy(torch.bfloat16, reduce_dtype)}
    if args.offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    with torch.device("meta"):
        model = make_model(args.shape)
    use_float8(model, args)
    wrap_blocks(model, args)
    for block in model.blocks:
        fully_shard(block, **options)
    # What the root holds (embeddings, last norm) is needed last in forward and first in backward.
    fully_shard(model, **{**options, "reshard_after_forward": False})
    model.to_empty(device="cpu" if args.offload else device)
    model.init_weights(args.seed + rank)
    return model, model, list(model.named_parameters())


class Batches:
    """Random tokens of one rank, and their successors as targets."""

    def __init__(self, args, device, rank):
        self.args, self.device = args, device
        self.generator = torch.Generator(device).manual_seed(1000 + args.seed + rank)

    def next(self):
        size = (self.args.micro_batch, self.args.rank_tokens + 1)
        tokens = torch.randint(self.args.shape.vocab, size, device=self.device,
                               generator=self.generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Trainer:
    def __init__(self, args, device, rank, world):
        self.args, self.device = args, device
        if args.mode == "ddp":
            self.run, self.model, params = build_ddp(args, device, world)
        else:
            self.run, self.model, params = build_fsdp(args, device, rank, world)
        self.params = [p for _, p in params]
        decayed = [p for _, p in params if p.dim() > 1]
        others = [p for _, p in params if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.batches = Batches(args, device, rank)
        self.ddp = args.mode == "ddp" and world > 1
        self.wrapped = getattr(self.run, "_orig_mod", self.run)

    def micro_step(self, last):
        sync = last or self.args.accum_sync == "each"
        context = contextlib.nullcontext()
        if self.ddp and not sync:
            context = self.wrapped.no_sync()
        if self.args.mode != "ddp":
            self.model.set_requires_gradient_sync(sync)
            if self.args.mode == "fsdp2-zero2":  # parameters stay until they change
                self.model.set_reshard_after_backward(last)
        cast = contextlib.nullcontext()
        if self.args.mode == "ddp":
            cast = torch.autocast(self.device.type, torch.bfloat16)
        with context:
            with cast:
                loss = self.run(*self.batches.next())
            (loss / self.args.grad_accum).backward()
        return loss.detach()

    def step(self):
        """Returns the mean loss of this rank's micro-steps, on the device."""
        total = torch.zeros((), device=self.device)
        for index in range(self.args.grad_accum):
            total += self.micro_step(index == self.args.grad_accum - 1)
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        if gathers_float8(self.args):
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
            precompute_float8_dynamic_scale_for_fsdp(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        return total / self.args.grad_accum


def train(args, device, rank, world):
    """Returns the seconds (of the slowest rank) and the mean loss of every step."""
    if args.mode == "deepspeed":
        from deepspeed_trainer import DeepSpeedTrainer
        trainer = DeepSpeedTrainer(args, device, make_model, Batches(args, device, rank),
                                   compile_functions)
    else:
        trainer = Trainer(args, device, rank, world)
    seconds, losses = [], []
    for index in range(args.warmup + args.steps):
        synchronize(device)
        begin = time.perf_counter()
        loss = trainer.step()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
        losses.append(loss)
        if rank == 0:
            print(f"step {index + 1}: loss {loss.item():.4f}, {seconds[-1]:.3f} s",
                  file=sys.stderr, flush=True)
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    means = torch.stack(losses)
    if world > 1:
        dist.all_reduce(times, dist.ReduceOp.MAX)
        dist.all_reduce(means, dist.ReduceOp.SUM)
        means /= world
    return times.tolist(), means.tolist()


def memory(device):
    """Peaks of PyTorch's allocator, all that is taken on the GPU and the process's peak in host
    memory, in bytes; of rank 0."""
    host = {"host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type != "cuda":
        return {"peak_allocated_bytes": None, "peak_reserved_bytes": None,
                "device_used_bytes": None, **host}
    free, total = torch.cuda.mem_get_info(device)
    return {"peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
            "device_used_bytes": total - free, **host}


def settings(args):
    """Those that only one of the modes has."""
    if args.mode == "deepspeed":
        return {"stage": args.stage, "alst": args.alst, "sequence_ranks": args.sequence_ranks,
                "offload_optimizer": args.offload_optimizer,
                "offload_param": args.offload_param}
    return {"float8": args.float8, "reduce_dtype": None if args.mode == "ddp" else args.reduce_dtype}


def deepspeed_version():
    package = sys.modules.get("deepspeed")
    if package is None:
        return None
    # A source tree that was never installed says so in this file alone.
    file = pathlib.Path(package.__file__).parents[1] / "version.txt"
    return file.read_text().strip() if file.exists() else package.__version__


def versions():
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn, "nccl": nccl,
            "deepspeed": deepspeed_version(),
            "torchao": getattr(sys.modules.get("torchao"), "__version__", None),
            "python": sys.version.split()[0]}


def main():
    args = parse()
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    device = torch.device(args.device, int(os.environ.get("LOCAL_RANK", 0))
                          if args.device == "cuda" else None)
    if args.device == "cuda":
        torch.cuda.set_device(device)
    if world > 1 or args.mode != "ddp":
        backend = "nccl" if args.device == "cuda" else "gloo"
        if args.offload and args.device == "cuda":
            backend = "cpu:gloo,cuda:nccl"  # the norm of gradients in host memory is reduced too
        alone = {}
        if world == 1 and args.mode != "deepspeed":  # FSDP2 wants a group, DeepSpeed torchrun's
            alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group(backend, **alone)
    if args.allocator_limit is not None:
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(args.allocator_limit * 2**30 / total, device)
    torch.set_float32_matmul_precision("high")
    sdpa = choose_sdpa(args, device)
    use_sdpa(sdpa)
    window = windowed(args)

    seconds, losses = train(args, device, rank, world)
    if rank == 0:
        timed = seconds[args.warmup:]
        median = statistics.median(timed)
        per_gpu = args.micro_batch * args.grad_accum * args.rank_tokens / median
        mfu = None
        if device.type == "cuda":
            mfu = per_gpu * args.shape.flops_per_token(args.seq_len) / H200_BF16_PEAK
        print(json.dumps({
            "executor": "DeepSpeed" if args.mode == "deepspeed" else "PyTorch", "model": args.model, "params": args.shape.params(),
            "mode": args.mode, "gpus": world, "micro_batch": args.micro_batch,
            "grad_accum": args.grad_accum, "seq_len": args.seq_len, "recompute": args.recompute,
            "offload": args.offload, "compile": args.compile, "compile_mode": args.compile_mode,
            "sdpa": sdpa, **window, **settings(args),
            "tokens_per_second_per_gpu": per_gpu, "mfu": mfu, "step_seconds": timed,
            "step_seconds_median": median, **memory(device),
            "loss_first": losses[0], "loss_last": losses[-1],
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
            "versions": versions()}), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
