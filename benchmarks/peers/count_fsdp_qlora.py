#!/usr/bin/env python3
"""Counts what each rank holds of a QLoRA model under FSDP, by the dtype in which 4-bit weights are packed.

    python count_fsdp_qlora.py > tests/data/runtimes/fsdp_qlora_counts.jsonl

Two ranks on the CPU (gloo) load tiny models as users do: transformers' from_pretrained with bitsandbytes' 4-bit weights
and device_map={"": "cpu"}, PEFT's adapters. FSDP2 is accelerate's own fsdp2_prepare_model; FSDP1 is
FullyShardedDataParallel with the arguments and PEFT's wrap policy that transformers' Trainer and accelerate give it.
Mixed precision is the storage's dtype, if that is a floating one, as the Trainer sets it. Then two steps train.

A row a case, of rank 0: bytes of parameters, `frozen_bytes` (4-bit weights with them), `whole_4bit_bytes` of those
that every rank keeps whole, `trained_bytes`; `params_allocated`, the same in blocks of 512 bytes, as CUDA's allocator
has them; `quant_bytes`, statistics and tables of 4-bit weights, a table that several share once; `losses`. Or
`error`, where the program fails.

Packages: torch, transformers, accelerate, peft, bitsandbytes.
"""

import json
import os
import sys
import tempfile
import warnings
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SMALL = dict(vocab_size=512, hidden_size=256, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
WIDE = dict(vocab_size=1024, hidden_size=512, intermediate_size=1408, num_attention_heads=8, num_key_value_heads=8, head_dim=64)
DTYPES = {"uint8": torch.uint8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# FSDP's version, storage, what it computes in, the adapters' dtype, layers, rank, shape.
CASES = [(2, "uint8", "bf16", "fp32", 3, 8, SMALL), (2, "bf16", "bf16", "fp32", 3, 8, SMALL),
         (2, "bf16", "bf16", "bf16", 3, 8, SMALL), (2, "fp16", "fp16", "fp32", 3, 8, SMALL),
         (2, "bf16", "bf16", "fp32", 2, 16, WIDE), (2, "uint8", "bf16", "bf16", 2, 16, WIDE),
         (2, "fp32", "bf16", "fp32", 3, 8, SMALL), (1, "uint8", "bf16", "fp32", 3, 8, SMALL),
         (1, "bf16", "bf16", "fp32", 3, 8, SMALL), (1, "bf16", "bf16", "bf16", 2, 16, WIDE),
         (1, "fp16", "fp16", "fp32", 3, 8, SMALL)]
# Storage that mixed precision casts.
MISMATCH = (2, "fp32", "bf16", "fp32", 3, 8, SMALL)


def load(folder, storage, computes, rank, adapters):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    packed = DTYPES[storage]
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=packed if packed.is_floating_point else DTYPES[computes], attn_implementation="sdpa",
        device_map={"": "cpu"},
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                               bnb_4bit_compute_dtype=DTYPES[computes], bnb_4bit_quant_storage=packed))
    model.config.use_cache = False
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    for param in model.parameters():
        if param.requires_grad:
            param.data = param.data.to(DTYPES[adapters])
    # Frozen 4-bit modules that evaluate repack their weights for a CPU, of which FSDP knows nothing.
    return model.train()


def shard_2(model, dtype):
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False)
    plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="bf16", device=torch.device("cpu"),
                                  is_main_process=dist.get_rank() == 0, torch_device_mesh={("fsdp",): mesh},
                                  parallelism_config=SimpleNamespace(fsdp_dim_names=("fsdp",)))
    return fsdp2_prepare_model(accelerator, model)


def shard_1(model, dtype):
    from peft.utils.other import fsdp_auto_wrap_policy
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    return FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=torch.device("cpu"),
                                    auto_wrap_policy=fsdp_auto_wrap_policy(model), use_orig_params=False, limit_all_gathers=True,
                                    mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype))


def held(param):
    local = param._local_tensor if hasattr(param, "_local_tensor") else param
    return local.untyped_storage().nbytes()


def quant_states(model):
    storages = {}
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        for tensor in () if state is None else (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def count(model):
    params = list(model.parameters())
    frozen, trained = ([p for p in params if p.requires_grad == wanted] for wanted in (False, True))
    whole = [p for p in frozen if type(p).__name__ == "Params4bit"]
    return {"frozen_bytes": sum(map(held, frozen)), "whole_4bit_bytes": sum(map(held, whole)),
            "trained_bytes": sum(map(held, trained)), "params_allocated": sum(-(-held(p) // 512) * 512 for p in params),
            "quant_bytes": quant_states(model)}


# accelerate runs models of FSDP1 under autocast, those of FSDP2 not.
def train(model, computes, autocast):
    from torch.amp import GradScaler
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    scaler = GradScaler("cpu", enabled=computes == "fp16" and trained[0].dtype == torch.float32)
    losses = []
    ids = torch.arange(64)[None]
    for _ in range(2):
        with torch.autocast("cpu", DTYPES[computes], enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 4))
    return losses


def work(rank, case, folder, file, mismatch):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29641", FSDP_TRANSFORMER_CLS_TO_WRAP="LlamaDecoderLayer")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    version, storage, computes, adapters, _, lora_rank, _ = case
    row = {}
    try:
        model = load(folder, storage, computes, lora_rank, adapters)
        packed = DTYPES[storage]
        dtype = DTYPES[computes] if mismatch or not packed.is_floating_point else packed
        model = (shard_2 if version == 2 else shard_1)(model, dtype)
        row = count(model)
        row["losses"] = train(model, computes, autocast=version == 1)
    except (RuntimeError, ValueError) as error:
        row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    if rank == 0:
        with open(file, "w") as out:
            json.dump(row, out)
    os._exit(0)  # the other rank may wait in a collective of a failed one


def main():
    from importlib.metadata import version
    from transformers import LlamaConfig, LlamaForCausalLM
    print(json.dumps({"versions": {n: version(n) for n in ("torch", "transformers", "accelerate", "peft", "bitsandbytes")}}))
    for case, mismatch in [*((c, False) for c in CASES), (MISMATCH, True)]:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            LlamaForCausalLM(LlamaConfig(num_hidden_layers=case[4], **case[6])).to(torch.bfloat16).save_pretrained(folder)
            file = os.path.join(folder, "row.json")
            ranks = mp.spawn(work, (case, folder, file, mismatch), nprocs=2, join=False)
            while not ranks.join():
                pass
            with open(file) as text:
                row = json.load(text)
        names = ("fsdp", "storage", "computes", "adapters", "layers", "rank")
        said = dict(zip(names, case[:6]), mixed_precision=case[2] if mismatch or case[1] == "uint8" else case[1])
        print(json.dumps({**said, "ranks": 2, **case[6], **row}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
