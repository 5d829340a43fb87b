#!/usr/bin/env python3
"""All of a Llama-style model trained in pure bf16 on one GPU by PyTorch: parameters, gradients and moments.

    python3 benchmarks/peers/light_states.py                       # Llama 3.1 8B, 2 x 4096
    python3 benchmarks/peers/light_states.py --in-backward
    python3 benchmarks/peers/light_states.py --tiny --device cpu   # tries it; the figures mean nothing

transformers' LlamaForCausalLM with weights drawn here, SDPA, every layer recomputed in the backward pass and
compiled by itself, the head and its loss in pieces that are recomputed too, and torch.optim.AdamW(fused=True) on
the bf16 parameters, which rounds to nearest. --in-backward: each parameter has an optimizer that steps as soon
as its gradient is there, which then goes. Gradients are not clipped, since in backward they cannot be.
Tokens are random. Prints one JSON line: tokens/s (median of the timed steps) and the peak of PyTorch's allocator.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
import transformers
from torch.utils.checkpoint import checkpoint

SHAPES = {
    "llama3.1-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
    "llama3.2-3b": dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, head_dim=128,
                        num_attention_heads=24, num_key_value_heads=8, vocab_size=128256,
                        tie_word_embeddings=True),
    "llama3.2-1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64,
                        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                        tie_word_embeddings=True),
}
TINY = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=512)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SHAPES), default="llama3.1-8b")
    parser.add_argument("--tiny", action="store_true", help="a small shape in place of --model")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=10, help="that are timed")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--in-backward", action="store_true", help="the optimizer runs in the backward pass")
    parser.add_argument("--loss-pieces", type=int, default=8, help="of the head and its loss")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-recompute", action="store_true")
    parser.add_argument("--lr", type=float, default=2e-5)
    args = parser.parse_args()
    if args.micro_batch * args.seq_len % args.loss_pieces:
        parser.error(f"--loss-pieces: the batch's {args.micro_batch * args.seq_len} positions are no multiple of "
                     f"{args.loss_pieces}")
    return args


def make_model(args):
    shape = TINY if args.tiny else SHAPES[args.model]
    config = transformers.LlamaConfig(**{"tie_word_embeddings": False, **shape}, rope_theta=500000.0,
                                      rms_norm_eps=1e-5, max_position_embeddings=131072, use_cache=False,
                                      attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(args.device):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    # Angles of positions are computed in fp32.
    rotary = model.model.rotary_emb
    with torch.device(args.device):
        model.model.rotary_emb = type(rotary)(config)
    model.train()
    if not args.no_recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if not args.no_compile:
        for layer in model.model.layers:
            layer.compile()
    return model


def piece_loss(hidden_NC, head_VC, targets_N):
    return F.cross_entropy(F.linear(hidden_NC, head_VC).float(), targets_N, reduction="sum")


def add_optimizer(args, model):
    """Returns what a step calls after its backward pass."""
    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    if not args.in_backward:
        optimizer = adamw(model.parameters())

        def finish():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return finish
    optimizers = {parameter: adamw([parameter]) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None
    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    return lambda: None


def main():
    args = parse()
    torch.manual_seed(1)
    on_gpu = args.device == "cuda"
    model = make_model(args)
    finish = add_optimizer(args, model)
    loss_of = piece_loss if args.no_compile else torch.compile(piece_loss)
    vocab = model.config.vocab_size
    tokens_BT = torch.randint(vocab, (args.micro_batch, args.seq_len + 1), device=args.device)
    positions = args.micro_batch * args.seq_len
    seconds, losses = [], []
    for _ in range(args.warmup + args.steps):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        hidden_NC = model.model(input_ids=tokens_BT[:, :-1]).last_hidden_state.flatten(0, 1)
        targets_N = tokens_BT[:, 1:].flatten()
        # The pieces' gradients meet in the head's and in hidden's, so that each parameter has its
        # gradient once, which an optimizer in the backward pass needs.
        loss = sum(checkpoint(loss_of, hidden, model.lm_head.weight, targets, use_reentrant=False)
                   for hidden, targets in zip(hidden_NC.chunk(args.loss_pieces), targets_N.chunk(args.loss_pieces)))
        (loss / positions).backward()
        finish()
        losses.append(loss.item() / positions)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[args.warmup:])
    print(json.dumps({
        "model": "tiny" if args.tiny else args.model,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "micro_batch": args.micro_batch, "seq_len": args.seq_len, "in_backward": args.in_backward,
        "recompute": not args.no_recompute, "compile": not args.no_compile,
        "step_seconds": median, "tokens_per_second": positions / median,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
        "first_loss": losses[0], "last_loss": losses[-1],
        "device": torch.cuda.get_device_name() if on_gpu else "cpu", "torch": torch.__version__,
        "transformers": transformers.__version__}))


if __name__ == "__main__":
    main()
