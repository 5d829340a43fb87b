"""Runs LLM.Q's `train` (github.com/IST-DASLab/llmq) and reads its log; writes its token files and
configs. Standard library and numpy only."""
import json
import pathlib
import re
import statistics

import numpy as np

import zeroplan_run as zeroplan
from shapes import LlamaShape

MATMUL_DTYPES = {"bf16": "bf16", "fp8": "e4m3"}
RECOMPUTE = {"none": [], "selective": ["--recompute-swiglu", "--recompute-norm"],
             "full": ["--recompute-block"]}


def program(args):
    return pathlib.Path(args.llmq) / "train"


def log_file(work):
    return work / "llmq.json"


def why_not(args):
    """Why LLM.Q does not run this, or None."""
    if args.llmq is None:
        return "give its folder, --llmq DIR"
    if not program(args).is_file():
        return f"no program {program(args)}"
    shape = args.shape
    if not isinstance(shape, LlamaShape) or shape.qk_norm or shape.out_bias or shape.mlp_bias:
        return "it trains models as Llama and Qwen2 are"
    if (args.offload_optimizer, args.offload_param) != ("none", "none"):
        return "its own offload is not run here"
    return None


def write_config(path, shape):
    kind = "Qwen2ForCausalLM" if shape.qkv_bias else "LlamaForCausalLM"
    config = {"architectures": [kind], "hidden_size": shape.hidden,
              "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
              "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
              "vocab_size": shape.vocab, "max_position_embeddings": shape.positions,
              "rope_theta": shape.theta, "rms_norm_eps": shape.eps,
              "tie_word_embeddings": shape.tied, "bos_token_id": 0, "eos_token_id": 0}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))


def write_tokens(path, tokens):
    """256 words, of which the first say mark, version, bytes of a token and count; then tokens."""
    header = np.zeros(256, dtype="<i4")
    header[:2] = np.frombuffer(b"BIN.TOK\n", dtype="<i4")
    header[2:5] = 1, 4, len(tokens)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(np.asarray(tokens).astype("<i4").tobytes())


def write_inputs(args, work, tokens):
    write_config(work / "llmq" / "config.json", args.shape)
    # It validates in front of a step that would leave no sequence for another rank.
    more = len(tokens) + args.gpus * args.seq_len
    write_tokens(work / "llmq_train.bin", np.resize(tokens, more))
    batch = args.gpus * args.micro_batch * args.seq_len
    write_tokens(work / "llmq_held.bin", np.resize(tokens, 2 * batch + 1))


def command(args, work):
    steps = args.warmup + args.steps
    options = {"model": work / "llmq", "matmul-dtype": MATMUL_DTYPES[args.matmul_dtype],
               "model-dtype": "bf16", "opt-m-dtype": "bf16", "opt-v-dtype": "bf16",
               "gpus": args.gpus, "batch-size": args.micro_batch, "seq-length": args.seq_len,
               "grad-accumulation": args.grad_accum, "steps": steps, "learning-rate": "1e-4",
               "final-lr-fraction": 1, "train-file": work / "llmq_train.bin",
               "eval-file": work / "llmq_held.bin", "eval-every-n-steps": 0, "eval-num-steps": 1,
               "ckpt-interval": 0, "log-gpu-util": max(1, steps - 1),  # at the first and last step
               "log-file": log_file(work), "out-dir": work / "llmq_out",
               "checkpoint-dir": work / "llmq_checkpoints"}
    if args.gpus > 1:
        options["zero-level"] = max(1, args.stage)
    return [str(program(args)), "--from-scratch", "--use-cuda-graphs",
            *RECOMPUTE[args.checkpointing],
            *(f"--{name}={value}" for name, value in options.items())]


def read_log(log, out):
    """Seconds and losses of all steps, and what is taken of GPU 0 in the last. The log has whole
    milliseconds; `[us] step N MICROSECONDS` in stdout, where a build prints it, counts more."""
    entries = [dict(re.findall(r'"(\w+)": "?([^",}]+)', line)) for line in log.splitlines()]
    steps = [entry for entry in entries if entry.get("log") == "step"]
    sizes = [int(entry["memory"]) for entry in entries if entry.get("log") == "gpu-model"]
    free = [int(entry["dram_free"]) for entry in entries if entry.get("log") == "gpu"]
    seconds = [int(step["duration_ms"]) / 1e3 for step in steps]
    exact = re.findall(r"^\[us\] step +\d+ +(\d+)", out, re.MULTILINE)
    if len(exact) == len(steps):
        seconds = [int(microseconds) / 1e6 for microseconds in exact]
    return {"seconds": seconds, "losses": [float(step["loss"]) for step in steps],
            "used_bytes": sizes[0] - free[-1] if sizes and free else None}


def run(args, line, work):
    log_file(work).unlink(missing_ok=True)
    out = zeroplan.run_command(line, args.timeout)
    result = read_log(log_file(work).read_text(encoding="utf-8", errors="replace"), out)
    timed, losses = result["seconds"][args.warmup:], result["losses"]
    if len(timed) != args.steps:
        raise zeroplan.Failed(f"{len(losses)} steps in {log_file(work).name}, expected "
                              f"{args.warmup + args.steps}\n{zeroplan.last_lines(out)}")
    tokens = args.micro_batch * args.grad_accum * args.seq_len
    return {"tokens_per_second_per_gpu": tokens / statistics.median(timed), "step_seconds": timed,
            "predicted_bytes": None, "used_bytes": result["used_bytes"],
            "loss_first": losses[0], "loss_last": losses[-1]}
