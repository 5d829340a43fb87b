#!/usr/bin/env python3
"""Counts what DeepSpeed's stage 3 does in Python in a micro-step: hooks, gathers, gradients.

    DS_ACCELERATOR=cpu python3 benchmarks/peers/deepspeed_counts.py --layers 24 --hidden 2048 --recompute

Runs DeepSpeed's own code on a CPU as one rank of two, with collectives that do nothing. The model is
made 1/32 as wide, with 1/32 of the vocabulary and the positions, and the keys that count elements
are 1/1024 of their defaults, so that each parameter's share of them stays as it is. Prints a line for
each micro-step: forward, backward and update apart. docs/runtimes.md has what it printed.
"""
import argparse
import collections
import os
import types

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost",
                  MASTER_PORT="29999")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

dist.init_process_group(backend="fake", store=FakeStore(), rank=0, world_size=2)

import deepspeed
from deepspeed.runtime.zero.partitioned_param_coordinator import (PartitionedParameterCoordinator,
                                                                  ZeroParamStatus)
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

from gpt2_model import Gpt2

SCALE = 32
counts = collections.Counter()


class ModuleGpt2(Gpt2):
    """Every parameter belongs to a module that is called."""

    def __init__(self, shape):
        super().__init__(shape)
        self.head = nn.Linear(shape.hidden, shape.padded_vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens_BT, targets_BT):
        x = self.wte(tokens_BT) + self.wpe(torch.arange(tokens_BT.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets_BT.flatten())


def recomputed(forward):
    return lambda x: checkpoint(forward, x, use_reentrant=False)


def count(owner, name, label, items=None):
    inner = getattr(owner, name)

    def counted(*args, **kwargs):
        counts[label] += 1
        if items:
            counts[items] += sum(param.ds_status == ZeroParamStatus.NOT_AVAILABLE
                                 for param in args[1])
        return inner(*args, **kwargs)
    setattr(owner, name, counted)


def count_all():
    gather = "_PartitionedParameterCoordinator__all_gather_params_"
    reduce = "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"
    count(PartitionedParameterCoordinator, "_fetch_sub_module_impl", "hooks")
    count(PartitionedParameterCoordinator, gather, "gathers", "parameters gathered")
    count(PartitionedParameterCoordinator, "_invalidate_trace", "traces made invalid")
    count(DeepSpeedZeroOptimizer_Stage3, "reduce_ready_partitions_and_remove_grads", "gradients")
    count(DeepSpeedZeroOptimizer_Stage3, reduce, "reductions")
    count(deepspeed.comm, "all_gather_into_tensor", "gathers of one tensor")


def make_config(micro_steps):
    square = SCALE * SCALE
    zero = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True,
            "reduce_bucket_size": 500_000_000 // square,
            "stage3_prefetch_bucket_size": 50_000_000 // square,
            "stage3_max_live_parameters": 1_000_000_000 // square,
            "stage3_max_reuse_distance": 1_000_000_000 // square,
            # As 1e5 does for models of this width: norms and biases persist, matrices do not.
            "stage3_param_persistence_threshold": 1000}
    adamw = {"lr": 1e-4, "torch_adam": True}
    return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micro_steps,
            "bf16": {"enabled": True}, "gradient_clipping": 1.0, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": adamw}, "steps_per_print": 10**9}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=2048, help="a multiple of 128")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--micro-steps", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    hidden, vocab, positions = args.hidden // SCALE, 50304 // SCALE, 1024 // SCALE
    shape = types.SimpleNamespace(layers=args.layers, hidden=hidden, heads=hidden // 4,
                                  padded_vocab=vocab, positions=positions)
    config = make_config(args.micro_steps)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    with deepspeed.zero.Init(config_dict_or_path=config):
        torch.set_default_dtype(torch.bfloat16)
        model = ModuleGpt2(shape)
        torch.set_default_dtype(torch.float32)
    if args.recompute:
        for block in model.blocks:
            block.forward = recomputed(block.forward)
    count_all()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=config)
    for step in range(args.steps):
        for micro_step in range(args.micro_steps):
            parts = []

            def note(part):
                parts.append(f"{part} {dict(counts)}")
                counts.clear()
            counts.clear()
            tokens = torch.randint(0, vocab, (1, positions + 1))
            loss = engine(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            note("forward")
            engine.backward(loss)
            note("backward")
            engine.step()
            note("update")
            print(f"step {step}, micro-step {micro_step}: {'; '.join(parts)}")


if __name__ == "__main__":
    main()
