#!/usr/bin/env python3
"""Makes the fixtures of tests/agreement/transformers_test.cc for the families of llama's kind.

Small models with random weights, one folder each, as transformers saves them: config.json (in the
style of the installed transformers), model.safetensors and expected.json, which holds the logits and
the loss of fixed tokens in double precision, and the losses and gradient norms of STEPS steps of
torch.optim.AdamW in fp32, gradients clipped at 1. Needs torch and transformers (4.51 or newer, which
has Qwen3).
Usage: make_llama_fixtures.py [FOLDER]              writes FOLDER/NAME for each model
                                                    (FOLDER: tests/fixtures of this checkout)
       make_llama_fixtures.py --compare OLD NEW     loads both folders with AutoModelForCausalLM and
                                                    prints how far their logits are apart
"""
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


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32,
                                                attn_implementation="eager")


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))


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

    trained = load(folder).train()
    parameters = list(trained.parameters())  # a tied head is there once
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=2e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss_of(trained(tokens[step, :, :-1]).logits, tokens[step, :, 1:])
        value.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 1.0)))
        optimizer.step()
        losses.append(float(value))

    (folder / "expected.json").write_text(json.dumps({
        "transformers": transformers.__version__, "torch": torch.__version__,
        "tokens": tokens.tolist(), "logits": logits.reshape(-1, VOCAB).tolist(), "loss": float(loss),
        "adamw": {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0},
        "train_losses": losses, "grad_norms": norms}))
    print(f"{folder}: loss {float(loss):.6f}, trained {losses[0]:.4f} to {losses[-1]:.4f}, "
          f"{sum(p.numel() for p in parameters)} parameters")


def compare(old, new):
    a, b = double(load(old)), double(load(new))
    tokens = torch.arange(BATCH * SEQ).reshape(BATCH, SEQ) % a.config.vocab_size
    with torch.no_grad():
        x, y = a(tokens).logits, b(tokens).logits
    worst = float((x - y).abs().max() / x.abs().max())
    print(f"{new}: logits within {worst:.3g} of {old}'s, relative to the largest")
    return worst


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if len(sys.argv) > 1 and sys.argv[1] == "--compare":
        compare(sys.argv[2], sys.argv[3])
        return
    root = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
    if len(sys.argv) > 1:
        root = pathlib.Path(sys.argv[1])
    for folder, *model in MODELS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        make(root / folder, *model)


if __name__ == "__main__":
    main()
