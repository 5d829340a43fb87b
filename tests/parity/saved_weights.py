#!/usr/bin/env python3
"""What zeroplan saves, Hugging Face transformers loads, with the same logits.

    python3 tests/parity/saved_weights.py                       # CPU backend, a minute
    python3 tests/parity/saved_weights.py --backend cuda

For each small model of tests/fixtures that transformers saved: zeroplan starts from its weights,
takes one step with a learning rate that changes none of them, and saves them: in one file, in
shards (of a model of the same kind with more layers and tokens, as a shard has at least 1 MB), in bf16
and fp16, and with a config.json of zeroplan's own making (the source's has a comment, which
transformers would not read). transformers must find every parameter in the folder
and no other, of the dtype asked for, and compute the same logits in double precision. Exit code 1
if not. Needs transformers 5, whose style the fixtures' configs are in.

fp32: within 1e-5 of the largest logit; the weights are the same bits. 16 bits: each weight is off by
at most the dtype's unit roundoff u, 2^-9 of bf16 and 2^-12 of fp16 relative to itself. The logits
must be within 1e-5 of those of the source's weights as PyTorch rounds them to that dtype: rounding
to nearest has one result. How far they are from those of the weights before is printed too.
"""
import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/peers"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
import zeroplan_run as zeroplan

BOUND = 1e-5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHARD = "1MB"
LARGER = {"layers": 60, "vocab": 30000}  # several shards in each dtype
# What is saved: name, dtype, shards, config.json of zeroplan's own.
VARIANTS = [("one file", "fp32", False, False), ("shards", "fp32", True, False),
            ("shards", "bf16", True, False), ("one file", "fp16", False, False),
            ("own config", "fp32", False, True)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=pathlib.Path,
                        help="models (default: those of tests/fixtures)")
    parser.add_argument("--binary", default=zeroplan.BINARY)
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one run")
    args = parser.parse_args()
    if not args.folders:
        args.folders = sorted(path.parent for path in
                              (ROOT / "tests/fixtures").glob("*/model.safetensors"))
    return args


def make_larger(folder, target):
    """A model like that in `folder`, with random weights."""
    config = AutoConfig.from_pretrained(folder).to_dict()
    config.pop("layer_types", None)  # follows from the layers
    config["n_layer" if "n_layer" in config else "num_hidden_layers"] = LARGER["layers"]
    config["vocab_size"] = LARGER["vocab"]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # nothing at 0 or 1 that could hide a slip
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(target)


def save(args, source, vocab, dtype, shards, target):
    tokens = target.parent / "tokens.u16"
    np.random.default_rng(1).integers(vocab, size=65).astype("<u2").tofile(tokens)
    options = ["--model", source, "--data", tokens, "--no-shuffle", "--backend", args.backend,
               "--dtype", "fp32", "--seq-len", 16, "--micro-batch", 2, "--steps", 1, "--lr",
               "1e-30", "--save", target, "--save-dtype", dtype]
    if shards:
        options += ["--max-shard-size", SHARD]
    zeroplan.train(options, target.parent / "metrics.jsonl", args.binary, args.timeout)


def load(folder):
    """In the dtype it is saved in; what transformers missed there or did not know."""
    model, told = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", attn_implementation="eager", output_loading_info=True)
    return model, {key: value for key, value in told.items() if value}


def logits(model):
    vocab = model.config.vocab_size
    tokens = torch.arange(64).reshape(4, 16) * 7 % vocab
    with torch.no_grad():
        return model.double().eval()(tokens).logits


def distance(a, b):
    return float((a - b).abs().max() / a.abs().max())


def rounded(folder, dtype):
    """The source's model with its weights rounded by PyTorch."""
    model = load(folder)[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    return model


def check(args, folder, variant, work):
    """What is wrong with one folder that zeroplan saved; empty: nothing."""
    what, dtype, shards, own_config = variant
    name = folder.name
    target = work / "saved"
    if shards:
        make_larger(folder, work / "larger")
        folder = work / "larger"
    source = folder
    if own_config:
        source = work / "source"
        shutil.copytree(folder, source)
        config = source / "config.json"
        config.write_text("// of a test\n" + config.read_text())
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    save(args, source, vocab, dtype, shards, target)
    files = sorted(path.name for path in target.glob("*.safetensors"))
    wrong = []
    if shards != (len(files) > 1):
        wrong.append(f"files: {files}")
    model, told = load(target)
    if told:
        wrong.append(f"transformers says: {told}")
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {DTYPES[dtype]}:
        wrong.append(f"loaded as {dtypes}")
    found = logits(model)
    off = distance(logits(load(folder)[0]), found)
    exact = distance(logits(rounded(folder, DTYPES[dtype])), found)
    if not exact <= BOUND:
        wrong.append(f"logits off by {exact:.3g}")
    print(f"{name:16} {what:10} {dtype}: {len(files)} files, logits within {off:.3g}, "
          f"of rounded weights' within {exact:.3g}: {'FAILED: ' if wrong else 'ok'}"
          f"{'; '.join(wrong)}", flush=True)
    return wrong


def main():
    args = parse()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    failed = 0
    for folder in args.folders:
        for variant in VARIANTS:
            with tempfile.TemporaryDirectory() as name:
                try:
                    failed += bool(check(args, folder, variant, pathlib.Path(name)))
                except (zeroplan.Failed, OSError, ValueError, RuntimeError) as error:
                    failed += 1
                    print(f"{folder.name:16} {variant[0]:10} {variant[1]}: FAILED: {error}",
                          flush=True)
    print(f"{len(args.folders) * len(VARIANTS)} saved, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
