#!/usr/bin/env python3
"""Makes the fixtures of tests/agreement/transformers_test.cc for the families of llama's kind.

Small models with random weights, one folder each, as transformers saves them: config.json (in the
style of the installed transformers), model.safetensors and expected.json, which holds the logits and
the loss of fixed tokens in double precision, the losses and gradient norms of STEPS steps of
torch.optim.AdamW in fp32, gradients clipped at 1, and bf16_noise: how far such steps and logits in
bf16 are at most from these. Needs torch and transformers (4.51 or newer, which has Qwen3).
Usage: make_llama_fixtures.py [FOLDER]              writes FOLDER/NAME for each model
                                                    (FOLDER: tests/fixtures of this checkout)
       make_llama_fixtures.py --noise FOLDER...     measures bf16_noise anew, of any fixture
"""
import contextlib
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM

STEPS, BATCH, SEQ, VOCAB = 20, 4, 16, 61

COMMON = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=3,
              max_position_embeddings=64, initializer_range=0.05, attention_dropout=0.0,
              bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)

# Folder, config class, its keys, rope_theta, scaling of the rotary positions.
MODELS = [
    ("llama_tiny", "LlamaConfig",
     dict(num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=False,
          rms_norm_eps=1e-5), 10000.0, None),
    # Biases in attention and MLP, a head size of its own, a tied head, llama3's positions.
    ("llama_tied_tiny", "LlamaConfig",
     dict(num_attention_heads=4, num_key_value_heads=4, head_dim=8, tie_word_embeddings=True,
          attention_bias=True, mlp_bias=True, rms_norm_eps=1e-6), 500000.0, LLAMA3),
    ("mistral_tiny", "MistralConfig",
     dict(num_attention_heads=4, num_key_value_heads=2, head_dim=10, tie_word_embeddings=False,
          sliding_window=32, rms_norm_eps=1e-5), 1000000.0, None),
    ("qwen2_tiny", "Qwen2Config",
     dict(num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True,
          use_sliding_window=False, rms_norm_eps=1e-6), 1000000.0, YARN),
    ("qwen3_tiny", "Qwen3Config",
     dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
          rms_norm_eps=1e-6), 1000000.0, dict(rope_type="linear", factor=2.0)),
]


def make_config(name, keys, theta, scaling):
    """A config of either style: transformers 5 has rope_parameters, 4 rope_theta and rope_scaling."""
    config_class = getattr(transformers, name)
    if int(transformers.__version__.split(".")[0]) >= 5:
        rope = dict(scaling or {"rope_type": "default"}, rope_theta=theta)
        config = config_class(**COMMON, **keys, rope_parameters=rope)
    else:
        config = config_class(**COMMON, **keys, rope_theta=theta, rope_scaling=scaling)
    config._attn_implementation = "eager"
    return config


def load(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype,
                                                attn_implementation="eager")


def loss_of(logits, targets):
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))


# How PyTorch trains in bf16: with weights in bf16 beside fp32 masters, as zeroplan does, or under
# autocast. What is computed in which dtype differs, and so does what is rounded.
def train(folder, tokens, compute="fp32", micro_steps=1):
    """Losses and gradient norms of training on each of `tokens` in turn."""
    masters = load(folder).train()
    model = load(folder, torch.bfloat16).train() if compute == "bf16" else masters
    cast = torch.autocast("cpu", torch.bfloat16) if compute == "autocast" else None
    parameters = list(masters.parameters())  # a tied head is there once
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=2e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for batch in tokens:
        optimizer.zero_grad()
        model.zero_grad()
        total = 0
        for rows in batch.chunk(micro_steps):
            with cast or contextlib.nullcontext():
                logits = model(rows[:, :-1]).logits
            loss = loss_of(logits, rows[:, 1:]) / micro_steps
            loss.backward()
            total += loss.item()
        if model is not masters:
            for master, parameter in zip(parameters, model.parameters(), strict=True):
                master.grad = parameter.grad.float()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())
        optimizer.step()
        if model is not masters:
            with torch.no_grad():
                for master, parameter in zip(parameters, model.parameters(), strict=True):
                    parameter.copy_(master)
        losses.append(total)
    return losses, norms


def farthest(runs, exact):
    return max(abs(a - b) for run in runs for a, b in zip(run, exact, strict=True))


def add_noise(folder):
    """The largest distances of bf16 runs from what expected.json says; logits relative to the largest
    of their position. The runs differ in how they sum up: in micro-steps, and the order of rows."""
    path = folder / "expected.json"
    expected = json.loads(path.read_text())
    tokens = torch.tensor(expected["tokens"])
    runs = [train(folder, rows, compute, micro_steps) for compute in ("bf16", "autocast")
            for micro_steps in (1, 2, 4) for rows in (tokens, tokens.flip(1))]
    exact = torch.tensor(expected["logits"], dtype=torch.float64)
    apart = []
    for dtype, cast in ((torch.bfloat16, False), (torch.float32, True)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
            logits = load(folder, dtype).eval()(tokens[0, :, :-1]).logits
        error = (logits.double().reshape(-1, VOCAB) - exact).abs()
        apart.append(float((error.amax(1) / exact.abs().amax(1)).max()))
    expected["bf16_noise"] = {"logits": max(apart),
                              "loss": farthest([r[0] for r in runs], expected["train_losses"]),
                              "grad_norm": farthest([r[1] for r in runs], expected["grad_norms"])}
    path.write_text(json.dumps(expected))
    print(f"{folder}: bf16_noise {expected['bf16_noise']}")


def double(model):
    """All of the model in double, but for the frequencies, which transformers holds in fp32."""
    return model.double().eval()


def make(folder, name, keys, theta, scaling):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(make_config(name, keys, theta, scaling)).float()
    with torch.no_grad():
        for key, tensor in model.named_parameters():  # nothing at 0 or 1 that could hide a slip
            if tensor.dim() == 1:
                tensor.add_(0.1 * torch.randn_like(tensor))
            elif "embed" not in key and "lm_head" not in key:
                tensor.mul_(3)
    model.save_pretrained(folder, safe_serialization=True)
    extra = folder / "generation_config.json"
    if extra.exists():
        extra.unlink()
    tokens = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ + 1))

    with torch.no_grad():
        logits = double(load(folder))(tokens[0, :, :-1]).logits
        loss = loss_of(logits, tokens[0, :, 1:])

    losses, norms = train(folder, tokens)
    (folder / "expected.json").write_text(json.dumps({
        "transformers": transformers.__version__, "torch": torch.__version__,
        "tokens": tokens.tolist(), "logits": logits.reshape(-1, VOCAB).tolist(), "loss": float(loss),
        "adamw": {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0},
        "train_losses": losses, "grad_norms": norms}))
    print(f"{folder}: loss {float(loss):.6f}, trained {losses[0]:.4f} to {losses[-1]:.4f}, "
          f"{sum(p.numel() for p in model.parameters())} parameters")
    add_noise(folder)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if len(sys.argv) > 1 and sys.argv[1] == "--noise":
        for folder in sys.argv[2:]:
            add_noise(pathlib.Path(folder))
        return
    root = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
    if len(sys.argv) > 1:
        root = pathlib.Path(sys.argv[1])
    for folder, *model in MODELS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        make(root / folder, *model)


if __name__ == "__main__":
    main()
