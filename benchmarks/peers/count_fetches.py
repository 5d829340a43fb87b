#!/usr/bin/env python3
"""Counts what DeepSpeed's stage 3 fetches, gathers and reduces in a step of a tiny mixture of experts: two ranks on
the CPU, three layers, six experts. Prints a line a step.

    python count_fetches.py qwen3_moe                    # transformers 5: one parameter for all experts of a layer
    python4 count_fetches.py qwen3_moe --leaf none       # transformers 4: linear modules; without leaf modules
    python4 count_fetches.py qwen3_moe --recompute       # ... with DeepSpeed's own list of leaf modules
"""

import argparse
import collections
import json
import os
import socket

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch

SHAPE = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
             max_position_embeddings=64, intermediate_size=16)
EXPERTS = dict(num_experts_per_tok=2)
TYPES = {
    "qwen3_moe": ("Qwen3Moe", dict(head_dim=8, num_experts=6, moe_intermediate_size=16)),
    "mixtral": ("Mixtral", dict(num_local_experts=6)),
    "olmoe": ("Olmoe", dict(num_experts=6)),
}
RANKS, TOKENS = 2, 48


def work(rank, port, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(RANKS), LOCAL_SIZE=str(RANKS))
    torch.set_num_threads(1)
    import deepspeed
    import transformers
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator

    torch.manual_seed(0)
    name, more = TYPES[options.type]
    config = getattr(transformers, name + "Config")(**SHAPE, **EXPERTS, **more)
    model = getattr(transformers, name + "ForCausalLM")(config).to(torch.bfloat16)
    model.config.use_cache = False
    if options.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": options.prefetch}
    if options.leaf != "default":
        zero["leaf_module"] = {"classes": [] if options.leaf == "none" else [options.leaf]}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        config={"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
                "zero_optimization": zero})
    counts = collections.Counter()

    def counted(owner, method, note):
        original = getattr(owner, method)

        def call(*args, **kwargs):
            note(args)
            return original(*args, **kwargs)

        setattr(owner, method, call)

    def gathers(args):
        params = list(args[1])
        if params:
            counts.update(gathers=1, gathered=len(params))

    counted(Coordinator, "fetch_sub_module", lambda args: counts.update(fetches=1))
    counted(Coordinator, "_invalidate_trace", lambda args: counts.update(invalidations=1))
    counted(Coordinator, "_PartitionedParameterCoordinator__all_gather_params", gathers)
    counted(engine.optimizer, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
            lambda args: counts.update(reductions=1))
    for _ in range(options.steps):
        counts.clear()
        ids = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(0))
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        if rank == 0:
            print(json.dumps(counts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("--leaf", default="default", help="none, or a class that is a leaf module")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--prefetch", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, options), RANKS)


if __name__ == "__main__":
    main()
