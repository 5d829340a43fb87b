#!/usr/bin/env python3
"""Steps with optimizer states of each kind, and with updates in the backward pass, on one host.

    python3 benchmarks/light_states.py                       # all rows that this machine has the GPUs for
    python3 benchmarks/light_states.py --rows 8b-host 10b
    python3 benchmarks/light_states.py --rows 8b-gpu --peer  # PyTorch in pure bf16 beside it

Each row is one `zeroplan train` of random tokens and fresh weights: the choice stands in the config that is
written for it, so that it is the same on every machine. Prints a table: tokens/s of a GPU (median of the steps
after the first), what compute waited for the host, memory planned and used. `8b-host` and `24b` hold parameters
and states in host memory: 131, 66 and 189 GB of it.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import zeroplan_run as zeroplan  # noqa: E402

FP32, LIGHT = {}, {"master_weights": "16bit", "optimizer_states": "bf16"}
M24B = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 5120,
        "intermediate_size": 32768, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 131072, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
        "rope_theta": 1e8, "sliding_window": None, "tie_word_embeddings": False, "hidden_act": "silu"}


def on_host(params):
    section = {"offload_optimizer": {"device": "cpu"}}
    if params:
        section["offload_param"] = {"device": "cpu"}
    return section


# name: (model, GPUs, sequence, micro-batch, micro-steps, layers recomputed, ZeRO section, states, in backward)
def variants(name, *shape, kinds=(("fp32", FP32), ("light", LIGHT)), backward=(False, True)):
    return {f"{name} {label}{', in backward' if late else ''}": (*shape, states, late)
            for late in backward for label, states in kinds}


HOST_3 = {"stage": 3, **on_host(True)}
GROUPS = {
    "8b-host": variants("8b-host", "llama3.1-8b", 1, 2048, 16, 2, 32, HOST_3),
    "10b": variants("10b", "gpt2-10b", 1, 1024, 10, 1, 50, {"stage": 2, **on_host(False)}),
    "10b-six": variants("10b-six", "gpt2-10b", 1, 1024, 10, 6, 50, {"stage": 2, **on_host(False)}, backward=(False,)),
    "24b": variants("24b", M24B, 1, 2048, 16, 1, 40,
                    {**HOST_3, "stage3_max_live_parameters": 3e9, "stage3_prefetch_bucket_size": 6e8},
                    kinds=(("light", LIGHT),), backward=(True,)),
    "8b-gpu": variants("8b-gpu", "llama3.1-8b", 1, 4096, 2, 1, 0, {"stage": 2}, kinds=(("light", LIGHT),)),
    "8b-two": variants("8b-two", "llama3.1-8b", 2, 4096, 2, 1, 0, {"stage": 3}, kinds=(("light", LIGHT),),
                       backward=(False,)),
}


def write_config(path, micro_batch, grad_accum, layers, zero, states, in_backward):
    config = {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": grad_accum,
              "bf16": {"enabled": True}, "gradient_clipping": 0.0 if in_backward else 1.0, "zero_optimization": zero,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}}
    if layers:
        config["activation_checkpointing"] = {"number_checkpoints": layers}
    own = {**states, **({"optimizer_in_backward": True} if in_backward else {})}
    if own:
        config["_zeroplan"] = own
    path.write_text(json.dumps(config))


def run(args, row, work):
    model, gpus, seq_len, micro_batch, grad_accum, layers, zero, states, in_backward = row
    config, metrics = work / "config.json", work / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    write_config(config, micro_batch, grad_accum, layers, zero, states, in_backward)
    if isinstance(model, dict):
        folder = work / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(model))
        model = folder
    zeroplan.run_command([args.binary, "train", "--backend", "cuda", "--model", model, "--gpus", gpus, "--seq-len",
                          seq_len, "--config", config, "--data", work / "tokens.u32", "--no-shuffle", "--steps",
                          args.steps, "--metrics", metrics], args.timeout)
    result = zeroplan.read_metrics(metrics)
    timed = result["steps"][1:]
    end = result["end"]
    return {"tokens_per_second_of_gpu": statistics.median(s["tokens_per_second"] for s in timed) / gpus,
            "step_seconds": [s["step_seconds"] for s in timed],
            "waits_seconds": statistics.median(s["exposed_offload_seconds"] or 0 for s in timed),
            "planned_bytes": result["start"]["planned_bytes"]["gpu"]["total"],
            "host_bytes": result["start"]["planned_bytes"]["host"]["total"],
            "used_bytes": end["device_used_bytes"],
            "touched_as_planned": end["high_water_bytes"] == end["planned_arena_bytes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--peer", action="store_true", help="benchmarks/peers/light_states.py, both ways")
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one run")
    parser.add_argument("--json", help="append results, one object a line")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps: at least 2, of which the first is not timed")
    failed = False
    print(f"{'row':30} {'tokens/s':>9} {'waits s':>8} {'planned':>8} {'used GB':>8} {'host GB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        tokens = np.random.default_rng(0).integers(0, 50257, size=1_200_000)
        zeroplan.write_tokens(work / "tokens.u32", tokens)
        for name, row in [item for group in args.rows for item in GROUPS[group].items()]:
            try:
                result = run(args, row, work)
            except zeroplan.Failed as error:
                failed = True
                print(f"{name:30} failed: {str(error).splitlines()[-1]}", flush=True)
                continue
            print(f"{name:30} {result['tokens_per_second_of_gpu']:9,.0f} {result['waits_seconds']:8.3f} "
                  f"{result['planned_bytes'] / 1e9:8.2f} {(result['used_bytes'] or 0) / 1e9:8.2f} "
                  f"{result['host_bytes'] / 1e9:8.1f}", flush=True)
            if args.json:
                with open(args.json, "a", encoding="utf-8") as out:
                    out.write(json.dumps({"row": name, **result}) + "\n")
    if args.peer:
        script = pathlib.Path(__file__).resolve().parent / "peers/light_states.py"
        for more in ([], ["--in-backward"]):
            print(zeroplan.run_command([sys.executable, script, *more], args.timeout, dict(os.environ)).strip(), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
