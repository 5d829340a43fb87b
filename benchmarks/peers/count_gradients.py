#!/usr/bin/env python3
"""Counts what DeepSpeed holds of parameters, gradients and states, by dtype of sums and reductions.

    DS_ACCELERATOR=cpu python3 benchmarks/peers/count_gradients.py > tests/data/runtimes/gradient_counts.jsonl

Runs DeepSpeed's own engine on the CPU as one rank of two, with collectives that do nothing, a model
whose modules have parameters and no activations, and an optimizer that makes two states and changes
nothing. Prints for each row bytes of tensors: the most of initialisation and what is left of it; of
the last of three steps the most of forward and backward passes, what is there between the
micro-steps, and the most of the update. Sizes are those of a GPT-2 of 2 layers and 512 columns.

Packages: torch, deepspeed.
"""

import gc
import json
import logging
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost",
                  MASTER_PORT="29996")

import torch
import torch.distributed as dist
from count_code import Trace
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group(backend="fake", store=FakeStore(), rank=0, world_size=2)
logging.disable(logging.WARNING)

import deepspeed

# An extension for ranks that exchange something, which takes minutes to build.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None

# Every tensor, and every rank's part of it, is a multiple of 512 bytes, to which allocators round.
LAYERS, HIDDEN, VOCAB, POSITIONS = 2, 512, 512, 256
STEPS = 3
NUMBER = 64  # bytes: what is no larger is a number, of which the model of memory knows nothing


def modules_of():
    """Elements of each module's parameters, in the order in which they run."""
    h = HIDDEN
    layer = [[h, h], [3 * h * h, 3 * h], [h * h, h], [h, h], [4 * h * h, 4 * h], [4 * h * h, h]]
    return [[VOCAB * h], [POSITIONS * h], *(LAYERS * layer), [h, h]]


class Use(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *params):
        ctx.sizes, ctx.dtype = [p.shape for p in params], params[0].dtype
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, *(torch.ones(size, dtype=ctx.dtype) for size in ctx.sizes)


class Held(nn.Module):
    def __init__(self, sizes, dtype):
        super().__init__()
        self.held = nn.ParameterList([torch.ones(size, dtype=dtype) for size in sizes])

    def forward(self, x):
        return Use.apply(x, *self.held)


class Model(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.parts = nn.ModuleList([Held(sizes, dtype) for sizes in modules_of()])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x.sum()


class Made(Trace):
    def note(self, tensor, made=True):
        # A tensor on the device "meta" is a shape.
        return None if tensor.is_meta else super().note(tensor, made)


class TwoStates(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and not self.state[param]:
                    self.state[param] = {key: torch.zeros_like(param) for key in ("m", "v")}


def config_of(stage, dtype, sums, sent, micro_steps):
    zero = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True,
            "reduce_bucket_size": 1 << 20, "stage3_prefetch_bucket_size": 1,
            "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
            "stage3_max_live_parameters": 1_000_000_000}
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micro_steps,
              dtype: {"enabled": True}, "zero_optimization": zero, "gradient_clipping": 1.0,
              "zero_allow_untested_optimizer": True, "steps_per_print": 10**9}
    if dtype == "fp16":
        config["fp16"]["loss_scale"] = 1.0
    if sums:
        config["data_types"] = {"grad_accum_dtype": sums}
    if sent:
        config["communication_data_type"] = sent
    return config


def events_of(stage, dtype, sums, sent, micro_steps):
    trace = Made({})
    config = config_of(stage, dtype, sums, sent, micro_steps)
    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    with trace:
        if stage == 3:
            with deepspeed.zero.Init(config_dict_or_path=config):
                model = Model(torch_dtype)
        else:
            model = Model(torch_dtype)
        params = list(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=params,
                                          optimizer=TwoStates(params))
        gc.collect()
        for _ in range(STEPS):
            for micro_step in range(micro_steps):
                trace.mark(f"micro-step {micro_step}")
                loss = engine(torch.ones(1, dtype=torch_dtype))
                engine.backward(loss)
                del loss
                # It does nothing before the last micro-step.
                trace.mark("update")
                engine.step()
    return trace.events


def row_of(stage, dtype, sums, sent, micro_steps):
    sizes, live, most, at, mark = {}, 0, {"init": 0}, {}, "init"
    for event in events_of(stage, dtype, sums, sent, micro_steps):
        if event[0] == "mark":
            mark = event[1]
            at.setdefault("after_init", live)
            at[mark] = most[mark] = live
            continue
        if event[0] == "new":
            sizes[event[1]] = event[2] if event[2] > NUMBER else 0
        live += sizes[event[1]] * (1 if event[0] == "new" else -1)
        most[mark] = max(most[mark], live)
    passes = [f"micro-step {i}" for i in range(micro_steps)]
    return {"stage": stage, "dtype": dtype, "sums": sums or dtype, "sent": sent or dtype,
            "micro_steps": micro_steps, "init": most["init"], "after_init": at["after_init"],
            "passes": max(most[one] for one in passes), "between_micro_steps": at[passes[-1]],
            "before_update": at["update"], "update": most["update"], "after": live}


def main():
    rows = [(stage, "bf16", sums, sent, micro_steps) for stage in (1, 2, 3)
            for sums in (None, "fp32") for sent in (None, "fp32") for micro_steps in (1, 2)]
    rows += [(stage, "fp16", "fp32", None, 2) for stage in (2, 3)]
    out, sys.stdout = sys.stdout, sys.stderr  # DeepSpeed prints too
    for row in rows:
        print(json.dumps(row_of(*row)), file=out, flush=True)


if __name__ == "__main__":
    main()
