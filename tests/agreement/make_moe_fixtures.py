#!/usr/bin/env python3
"""Makes the fixtures of tests/agreement/transformers_test.cc for mixtures of experts.

As make_llama_fixtures.py does, whose functions it uses: small models with random weights, one
folder each, with config.json and model.safetensors as transformers saves them (a tensor of each
expert, in the published names) and expected.json. That has the keys which all models have, but for
"tokens" of DOUBLE_STEPS batches, and more:
  fp64_adamw    AdamW of the runs below; its eps keeps rounding from growing with the steps
  fp64_runs     training in double precision, without and with the auxiliary loss:
    aux         the auxiliary loss times this is added to the loss; 0: it is not
    micro_steps so many passes make a step, rows in order; losses are their means
    losses, aux_losses, grad_norms
                of each step, before its update: cross entropy alone, the auxiliary loss before it
                is multiplied, the norm of the gradients of the sum before clipping
    weights     after the last step, of each tensor of model.safetensors: largest magnitude, sum,
                and the elements `values` at the flat indices `at`; not in all runs
  router_gap    the smallest relative distance, in all passes, between the last probability that was
                chosen and the first that was not; first_batch: of the untrained model's first batch
NAME_fused holds one model as transformers has it in memory: all experts of a layer in
one tensor.
Needs torch and transformers (5, with its pull request 45131: an auxiliary loss of one softmax).
Usage: make_moe_fixtures.py [FOLDER]    writes FOLDER/NAME for each model
                                        (FOLDER: tests/fixtures of this checkout)
"""
import contextlib
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

import make_llama_fixtures as llama
from make_llama_fixtures import BATCH, SEQ, STEPS, VOCAB, loss_of

DOUBLE_STEPS, DRAWN_ROWS = 50, 2048
AUX = 0.02
SMALLEST_GAP = 1e-5
FP32_ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
FP64_ADAMW = dict(FP32_ADAMW, eps=1e-3)

COMMON = {key: value for key, value in llama.COMMON.items() if key != "intermediate_size"}

# Folder, config class, its keys, rope_theta, and a seed without a near tie in the runs.
MODELS = [
    ("qwen3_moe_tiny", "Qwen3MoeConfig",
     dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=20,
          num_experts=6, num_experts_per_tok=3, moe_intermediate_size=10,
          norm_topk_prob=True, rms_norm_eps=1e-6), 1000000.0, 17),
    # A dense layer between sparse ones.
    ("qwen3_moe_mixed_tiny", "Qwen3MoeConfig",
     dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=20,
          num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12, mlp_only_layers=[1],
          norm_topk_prob=False, rms_norm_eps=1e-6), 1000000.0, 5),
    ("olmoe_tiny", "OlmoeConfig",
     dict(num_attention_heads=6, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2,
          intermediate_size=6, norm_topk_prob=False, rms_norm_eps=1e-5), 10000.0, 3),
    ("mixtral_tiny", "MixtralConfig",
     dict(num_attention_heads=4, num_key_value_heads=2, head_dim=10, num_local_experts=4,
          num_experts_per_tok=2, intermediate_size=14, rms_norm_eps=1e-5), 1000000.0, 2),
    ("qwen2_moe_tiny", "Qwen2MoeConfig",
     dict(num_attention_heads=6, num_key_value_heads=2, intermediate_size=20, num_experts=7,
          num_experts_per_tok=3, moe_intermediate_size=8, shared_expert_intermediate_size=14,
          norm_topk_prob=False, rms_norm_eps=1e-6), 1000000.0, 1),
]
FUSED = "olmoe_tiny"


class Double(TorchFunctionMode):
    """Computes in double also what transformers does in fp32: norms, softmax, auxiliary loss."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        return func(*args, **kwargs)


def computing(dtype):
    return Double() if dtype == torch.float64 else contextlib.nullcontext()


def draw(name, keys, theta, seed):
    """A model and its tokens. The rows of the first batch are those of the largest gaps among many:
    in bf16 too they go to the experts they go to in double."""
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**dict(
        COMMON, tie_word_embeddings=False, router_aux_loss_coef=AUX,
        rope_parameters={"rope_type": "default", "rope_theta": theta}, **keys))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                             experts_implementation="eager").float()
    with torch.no_grad():
        for key, tensor in model.named_parameters():  # nothing at 0 or 1 that could hide a slip
            if tensor.dim() == 1:
                tensor.add_(0.1 * torch.randn_like(tensor))
            elif "embed" not in key and "lm_head" not in key:
                tensor.mul_(3)
    tokens = torch.randint(0, VOCAB, (DOUBLE_STEPS, BATCH, SEQ + 1))
    rows = torch.randint(0, VOCAB, (DRAWN_ROWS, SEQ + 1))
    with torch.no_grad():
        gaps = row_gaps(model, run(model, rows[:, :-1]), DRAWN_ROWS)
    tokens[0] = rows[gaps.topk(BATCH).indices]
    return model, tokens


def load(folder, dtype=torch.float32):
    """The model with experts one by one: the way that takes any dtype and width."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                experts_implementation="eager")


def run(model, tokens):
    dtype = next(model.parameters()).dtype
    with computing(dtype):
        return model(tokens, output_router_logits=True)


def row_gaps(model, out, rows):
    """The smallest relative distance from the last chosen expert to the next, of each row."""
    top = model.config.num_experts_per_tok
    p = torch.stack([logits.detach().double().softmax(1) for logits in out.router_logits])
    p = p.sort(2, descending=True).values
    return (1 - p[:, :, top] / p[:, :, top - 1]).reshape(len(p), rows, -1).amin((0, 2))


def gap(model, out):
    return float(row_gaps(model, out, 1))


def auxiliary_loss(model, out):
    """E * sum over experts of share of tokens * mean probability, from the routers' logits."""
    logits = torch.cat(out.router_logits)
    assert logits.min() < 0, "routers of this transformers give probabilities as logits"
    p = logits.softmax(1)
    chosen = torch.zeros_like(p)
    chosen.scatter_(1, p.topk(model.config.num_experts_per_tok, dim=1).indices, 1)
    return p.shape[1] * (chosen.mean(0) * p.mean(0)).sum()


def train(model, tokens, adamw, aux=0.0, micro_steps=1):
    """Trains `model` on each of `tokens` in turn: losses, auxiliary losses, norms, smallest gap."""
    parameters = list(model.train().parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": adamw["weight_decay"]},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=adamw["lr"], betas=tuple(adamw["betas"]), eps=adamw["eps"])
    losses, aux_losses, norms, smallest = [], [], [], 1.0
    for batch in tokens:
        optimizer.zero_grad()
        loss_sum = aux_sum = 0
        for rows in batch.chunk(micro_steps):
            out = run(model, rows[:, :-1])
            loss = loss_of(out.logits, rows[:, 1:])
            own = auxiliary_loss(model, out)
            assert abs(own - out.aux_loss) < 1e-5 * own, "transformers has another auxiliary loss"
            (loss + aux * out.aux_loss if aux else loss).div(micro_steps).backward()
            loss_sum += loss.item() / micro_steps
            aux_sum += out.aux_loss.item() / micro_steps
            smallest = min(smallest, gap(model, out))
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, adamw["clip"]).item())
        optimizer.step()
        losses.append(loss_sum)
        aux_losses.append(aux_sum)
    return losses, aux_losses, norms, smallest


def published(model):
    """The weights as save_pretrained writes them: by their published names, experts apart."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def rounded(values, digits):
    return [float(f"{value:.{digits}g}") for value in values]


def summary(tensor, elements=8):
    flat = tensor.double().flatten()
    count = min(elements, len(flat))
    at = [i * (len(flat) - 1) // max(count - 1, 1) for i in range(count)]
    largest, total = rounded([float(flat.abs().max()), float(flat.sum())], 9)
    return {"largest": largest, "sum": total, "at": at, "values": rounded(flat[at].tolist(), 8)}


def double_run(folder, tokens, aux, micro_steps, weights):
    model = load(folder, torch.float64)
    losses, aux_losses, norms, smallest = train(model, tokens, FP64_ADAMW, aux, micro_steps)
    told = {"aux": aux, "micro_steps": micro_steps, "losses": rounded(losses, 12),
            "aux_losses": rounded(aux_losses, 12), "grad_norms": rounded(norms, 12)}
    exact = published(model)
    if weights:
        told["weights"] = {name: summary(tensor) for name, tensor in exact.items()}

    # How far PyTorch's fp32 gets from it.
    again = load(folder)
    single = train(again, tokens, FP64_ADAMW, aux, micro_steps)
    smallest = min(smallest, single[3])
    apart = max(float((tensor - exact[name]).abs().max() / exact[name].abs().max())
                for name, tensor in published(again).items())
    print(f"  aux {aux}, {micro_steps} micro-steps: loss {losses[0]:.4f} to {losses[-1]:.4f}, aux "
          f"{aux_losses[0]:.4f} to {aux_losses[-1]:.4f}, gap {smallest:.1e}; fp32 apart: loss "
          f"{llama.farthest([single[0]], losses):.1e}, aux "
          f"{llama.farthest([single[1]], aux_losses):.1e}, norm "
          f"{llama.farthest([single[2]], norms):.1e}, weights {apart:.1e}")
    return told, smallest


def same_choices_in_bf16(folder, tokens):
    """True if bf16 and autocast route the first batch as double does."""
    choices = []
    for dtype, cast in ((torch.float64, False), (torch.bfloat16, False), (torch.float32, True)):
        model = load(folder, dtype).eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
            logits = torch.cat(run(model, tokens[0, :, :-1]).router_logits)
        top = logits.float().topk(model.config.num_experts_per_tok, dim=1).indices
        choices.append(top.sort(1).values)
    return all(torch.equal(choices[0], other) for other in choices[1:])


def make(folder, name, keys, theta, seed):
    model, tokens = draw(name, keys, theta, seed)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if folder.name == FUSED:
        fused = folder.with_name(folder.name + "_fused")
        model.save_pretrained(fused, save_original_format=False)
        (fused / "generation_config.json").unlink(missing_ok=True)

    exact = load(folder, torch.float64).eval()
    with torch.no_grad():
        out = run(exact, tokens[0, :, :-1])
        loss = loss_of(out.logits, tokens[0, :, 1:])
    first_gap = gap(exact, out)

    short = tokens[:STEPS]
    losses, norms = llama.train(folder, short)
    fp32 = train(load(folder), short, FP32_ADAMW)
    fp64 = train(load(folder, torch.float64), short, FP32_ADAMW)
    gaps = [fp32[3], fp64[3]]
    print(f"{folder}: loss {float(loss):.6f}, trained {losses[0]:.4f} to {losses[-1]:.4f}, "
          f"{sum(p.numel() for p in model.parameters())} parameters, gap in the first batch "
          f"{first_gap:.1e}, in fp32 training {min(gaps):.1e}; fp32 apart from fp64: loss "
          f"{llama.farthest([losses, fp32[0]], fp64[0]):.1e}, norm "
          f"{llama.farthest([norms, fp32[2]], fp64[2]):.1e}")
    runs = []
    for aux, micro_steps, weights in ((0, 1, True), (AUX, 1, True), (AUX, 2, False)):
        told, smallest = double_run(folder, tokens, aux, micro_steps, weights)
        runs.append(told)
        gaps.append(smallest)
    assert min(gaps) >= SMALLEST_GAP, f"{folder}: a near tie ({min(gaps)}); choose another seed"
    assert same_choices_in_bf16(folder, tokens), f"{folder}: bf16 routes otherwise"

    path = folder / "expected.json"
    path.write_text(json.dumps({
        "transformers": transformers.__version__, "torch": torch.__version__,
        "tokens": short.tolist(),
        "logits": [rounded(row, 8) for row in out.logits.reshape(-1, VOCAB).tolist()],
        "loss": float(loss), "adamw": FP32_ADAMW, "train_losses": losses, "grad_norms": norms}))
    llama.add_noise(folder)
    expected = json.loads(path.read_text())
    expected["tokens"] = tokens.tolist()
    expected.update(fp64_adamw=FP64_ADAMW, fp64_runs=runs,
                    router_gap={"smallest": min(gaps), "first_batch": first_gap})
    path.write_text(json.dumps(expected, separators=(",", ":")))


def main():
    torch.set_num_threads(1)
    llama.load = load  # for train and add_noise
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    root = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
    if len(sys.argv) > 1:
        root = pathlib.Path(sys.argv[1])
    for folder, *model in MODELS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        make(root / folder, *model)


if __name__ == "__main__":
    main()
