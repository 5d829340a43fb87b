#!/usr/bin/env python3
"""Training speed and memory of mixtures of experts on one GPU: zeroplan and transformers in turns.

    python3 benchmarks/experts.py --row olmoe --repeat 3
    python3 benchmarks/experts.py --row qwen3-30b-12-layers --only zeroplan

All weights are trained, with parameters, gradients and AdamW's states in bf16, on random tokens.
transformers runs by benchmarks/peers/mixture_train.py, plain and compiled, with Liger where that is
installed. A row that fails is reported, and the others still run.
"""
import argparse
import importlib.util
import json
import pathlib
import shlex
import statistics
import sys
import tempfile

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))

import numpy as np
import zeroplan_run as zeroplan

OLMOE = dict(architectures=["OlmoeForCausalLM"], model_type="olmoe", vocab_size=50304, hidden_size=2048,
             intermediate_size=1024, num_hidden_layers=16, num_attention_heads=16,
             num_key_value_heads=16, num_experts=64, num_experts_per_tok=8, norm_topk_prob=False,
             max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=10000.0,
             router_aux_loss_coef=0.01, tie_word_embeddings=False)
QWEN3 = dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", vocab_size=151936,
             hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768,
             num_hidden_layers=12, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
             num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, mlp_only_layers=[],
             decoder_sparse_step=1, max_position_embeddings=40960, rms_norm_eps=1e-6,
             rope_theta=1000000.0, router_aux_loss_coef=0.001, tie_word_embeddings=False)
ROWS = {
    "olmoe": dict(config=OLMOE, micro_batch=4, seq_len=2048, checkpointing="none",
                  peers={"transformers": [], "compiled": ["--compile"]}),
    "qwen3-30b-12-layers": dict(config=QWEN3, micro_batch=4, seq_len=4096, checkpointing="selective",
                                peers={"transformers": ["--recompute", "--liger"]}),
}
LIGHT = ["--master-weights", "16bit", "--optimizer-states", "bf16"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=ROWS, nargs="+", default=list(ROWS))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--only", choices=["zeroplan", "transformers", "compiled"], nargs="+")
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--python", default=sys.executable, help="one that has transformers")
    parser.add_argument("--zeroplan-args", default="", help="more options, in one argument")
    parser.add_argument("--timeout", type=float, default=400, help="seconds of one run")
    return parser.parse_args()


def run_zeroplan(args, row, work):
    metrics = work / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    data = work / zeroplan.token_file_name(row["config"]["vocab_size"])
    count = row["micro_batch"] * row["seq_len"] * (args.warmup + args.steps) + 1
    zeroplan.write_tokens(data, np.random.default_rng(1).integers(row["config"]["vocab_size"], size=count))
    command = [args.binary, "train", "--backend", "cuda", "--gpus", 1, "--model", work / "config.json",
               "--data", data, "--no-shuffle", "--steps", args.warmup + args.steps, "--dtype", "bf16",
               "--seq-len", row["seq_len"], "--micro-batch", row["micro_batch"], "--lr", "1e-5",
               "--checkpointing", row["checkpointing"], "--metrics", metrics, *LIGHT,
               *shlex.split(args.zeroplan_args)]
    zeroplan.run_command(command, args.timeout)
    result = zeroplan.read_metrics(metrics)
    steps = result["steps"][args.warmup:]
    end = result["end"]
    return {"tokens_per_second_per_gpu": statistics.median(s["tokens_per_second"] for s in steps),
            "memory": result["start"]["planned_bytes"]["gpu"]["total"],
            "used": end["device_used_bytes"], "predicted": result["start"]["predicted"]["step_seconds"],
            "seconds": statistics.median(s["step_seconds"] for s in steps),
            "most": statistics.median(s["expert_most"] for s in steps)}


def run_peer(args, row, options, work):
    if "--liger" in options and importlib.util.find_spec("liger_kernel") is None:
        options = [option for option in options if option != "--liger"]
    command = [args.python, PEERS / "mixture_train.py", "--model", work / "config.json",
               "--micro-batch", row["micro_batch"], "--seq-len", row["seq_len"], "--steps", args.steps,
               "--warmup", args.warmup, *options]
    result = json.loads(zeroplan.run_command(command, args.timeout).strip().splitlines()[-1])
    return {**result, "memory": result["allocated_bytes"], "used": result["reserved_bytes"],
            "seconds": statistics.median(result["step_seconds"])}


def main():
    args = parse()
    for name in args.row:
        row = ROWS[name]
        wanted = [w for w in ("zeroplan", *row["peers"]) if not args.only or w in args.only]
        rates = {executor: [] for executor in wanted}
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            (work / "config.json").write_text(json.dumps(row["config"]))
            for repetition in range(args.repeat):
                for executor in wanted if repetition % 2 == 0 else wanted[::-1]:
                    try:
                        run = (run_zeroplan(args, row, work) if executor == "zeroplan"
                               else run_peer(args, row, row["peers"][executor], work))
                    except (zeroplan.Failed, OSError, ValueError) as error:
                        print(f"{name}: {executor}: FAILED: {error}", flush=True)
                        continue
                    rates[executor].append(run["tokens_per_second_per_gpu"])
                    predicted = run.get("predicted")
                    more = f", predicted {1e3 * predicted:.1f}, fullest expert {run['most']:.1f} x mean" if predicted else ""
                    print(f"{name}: {executor}: {rates[executor][-1]:,.0f} tokens/s, "
                          f"{1e3 * run['seconds']:.1f} ms a step{more}; memory {run['memory'] / 1e9:.1f} GB, "
                          f"in use {(run['used'] or 0) / 1e9:.1f}", flush=True)
        ours = statistics.median(rates["zeroplan"]) if rates.get("zeroplan") else None
        for executor, of_peer in rates.items():
            if ours and of_peer and executor != "zeroplan":
                print(f"{name}: zeroplan / {executor}: {ours / statistics.median(of_peer):.3f}", flush=True)


if __name__ == "__main__":
    main()
