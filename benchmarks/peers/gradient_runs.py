#!/usr/bin/env python3
"""Memory of DeepSpeed on one GPU with gradients summed and sent in fp32: stages 1 to 3, with offload.

    python3 benchmarks/peers/gradient_runs.py                 # GPT-2 of 24 layers, on cuda:0
    python3 benchmarks/peers/gradient_runs.py --tiny          # tries it; the figures mean little

A row a process, one after the other: `deepspeed.initialize` of a GPT-2 in 16 bit, then three steps of
two micro-steps. Prints a JSON line for each: bytes of PyTorch's allocator after initialisation
and at its most, at most in steps and between them, and max_memory_reserved. What is predicted of a row:

    zeroplan estimate --model gpt2-medium --gpus 1 --hw h200 --runtime deepspeed --config ROW.json --seq-len 1024

where --configs FOLDER writes ROW.json. The stages' optimizer is torch.optim.AdamW's fused one on the
GPU (`torch_adam`), so that no extension is built; rows with offload build DeepSpeedCPUAdam (40 s, once).

Packages: torch, deepspeed (0.19.6 is what is modelled; --deepspeed PATH has its source tree).
"""
import argparse
import json
import os
import subprocess
import sys

ROWS = [(stage, sums, sent, offload)
        for stage, offload in ((1, False), (2, False), (3, False), (2, True), (3, True))
        for sums, sent in ((None, None), ("fp32", None), (None, "fp32"))]
SHAPE = {"layers": 24, "hidden": 1024, "heads": 16, "positions": 1024, "padded_vocab": 50304}
TINY = {"layers": 2, "hidden": 256, "heads": 4, "positions": 256, "padded_vocab": 1024}


def config_of(stage, sums, sent, offload):
    zero = {"stage": stage, "overlap_comm": False}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    adamw = {"lr": 1e-5} if offload else {"lr": 1e-5, "torch_adam": True, "fused": True}
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
              "bf16": {"enabled": True}, "zero_optimization": zero, "gradient_clipping": 1.0,
              "optimizer": {"type": "AdamW", "params": adamw}, "steps_per_print": 10**9}
    if sums:
        config["data_types"] = {"grad_accum_dtype": sums}
    if sent:
        config["communication_data_type"] = sent
    return config


def run(row, shape):
    import types

    import torch
    import torch.nn.functional as F

    import deepspeed
    from gpt2_model import Gpt2

    class ModuleGpt2(Gpt2):
        """Every parameter belongs to a module that is called, as stage 3 wants it."""

        def __init__(self, of):
            super().__init__(of)
            self.head = torch.nn.Linear(of.hidden, of.padded_vocab, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, tokens_BT, targets_BT):
            x = self.wte(tokens_BT) + self.wpe(torch.arange(tokens_BT.size(1), device="cuda"))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.ln_f(x))
            return F.cross_entropy(logits.flatten(0, 1).float(), targets_BT.flatten())

    config = config_of(*row)
    torch.cuda.set_device(0)
    of = types.SimpleNamespace(**shape)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"), deepspeed.zero.Init(config_dict_or_path=config, enabled=row[0] == 3):
        model = ModuleGpt2(of)
    torch.set_default_dtype(torch.float32)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=config)
    cuda = torch.cuda
    out = {"stage": row[0], "sums": row[1] or "bf16", "sent": row[2] or "bf16", "offload": row[3],
           "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters()),
           "init_peak": cuda.max_memory_allocated(), "after_init": cuda.memory_allocated()}
    for step in range(3):
        cuda.reset_peak_memory_stats()
        for _ in range(2):
            tokens = torch.randint(0, of.padded_vocab, (1, of.positions + 1), device="cuda")
            loss = engine(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            engine.backward(loss)
            engine.step()
        del loss
    out.update(step_peak=cuda.max_memory_allocated(), between_steps=cuda.memory_allocated(),
               reserved=cuda.max_memory_reserved(), deepspeed=deepspeed.__version__,
               torch=torch.__version__)
    print("RESULT " + json.dumps(out), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--deepspeed", help="a folder that has the package deepspeed")
    parser.add_argument("--configs", help="a folder to write each row's config into, and do no more")
    parser.add_argument("--no-offload", action="store_true", help="without rows that build an extension")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = TINY if args.tiny else SHAPE
    if args.row is not None:
        return run(ROWS[args.row], shape)
    if args.configs:
        os.makedirs(args.configs, exist_ok=True)
        for i, row in enumerate(ROWS):
            with open(os.path.join(args.configs, f"row{i}.json"), "w", encoding="utf-8") as out:
                json.dump(config_of(*row), out)
        return None
    env = dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost",
               MASTER_PORT="29995", DS_SKIP_CUDA_CHECK="1")
    if args.deepspeed:
        env["PYTHONPATH"] = args.deepspeed + os.pathsep + env.get("PYTHONPATH", "")
    for i, row in enumerate(ROWS):
        if row[3] and args.no_offload:
            continue
        command = [sys.executable, os.path.abspath(__file__), "--row", str(i)]
        done = subprocess.run(command + (["--tiny"] if args.tiny else []), env=env, text=True,
                              capture_output=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        print(lines[-1][7:] if lines else f"row {i} {row}: {done.stderr.strip()[-400:]}", flush=True)
    return None


if __name__ == "__main__":
    main()
