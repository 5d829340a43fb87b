#!/usr/bin/env python3
"""Counts what other people's modelling code makes, keeps for backward and launches.

Runs the real modules on the CPU, tiny: transformers', Liger's (whose Triton kernels are
noted, not run), torchtune's, torchtitan's, llm-foundry's. A dispatch mode sees every tensor being made and freed, and every
operation with the bytes that it reads and writes. Prints one JSON row for each part of a layer.

    TRITON_INTERPRET=1 python count_code.py --llm-foundry DIR > tests/data/runtimes/code_counts.jsonl

Packages: torch, transformers, liger-kernel, torchtune, torchtitan; llm-foundry's files are read with
--llm-foundry DIR, since importing them takes Composer. What is missing is left out, and said.

The script of a part, forward and backward, is a list of words:
    a4e   tensor a is made, 4 bytes for each element e
    -a    it is freed
    =i    what was given forward (i, j, l) is kept for backward
    o:i   the result is what was given, overwritten
    W     the gradient of the part's weight is made
o, O are results; g, G the gradients that backward is given; d, D, M those that it gives. Elements: e
of the part's first input, f tokens x MLP, k tokens x columns of keys, s scores (batch x heads x seq
x seq); what has fewer is left out.
"""

import argparse
import contextlib
import json
import os
import sys
import types
import warnings
import weakref
from collections import Counter

os.environ.setdefault("TRITON_INTERPRET", "1")
warnings.filterwarnings("ignore")

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# No size is a small multiple of another.
BATCH, SEQ, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 2, 24, 168, 6, 2, 32, 352, 1040
TOKENS = BATCH * SEQ
SIZES = {
    "h": TOKENS * HIDDEN,
    "f": TOKENS * FFN,
    "q": TOKENS * HEADS * HEAD,
    "k": TOKENS * KV_HEADS * HEAD,
    "v": TOKENS * VOCAB,
    "s": BATCH * HEADS * SEQ * SEQ,
}
BF16 = torch.bfloat16
# bf16: parameters in it, no autocast; autocast: the same under autocast; fp32: parameters in fp32,
# under autocast.
PRECISIONS = ("bf16", "autocast", "fp32")
# Operations that make no tensor and launch no kernel.
FREE = {
    "aten._unsafe_view.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.detach.default",
    "aten.empty_strided.default",
}
# How often CUDA's kernels read an argument, by its position, where that is not once: the loss looks
# up single elements, and log_softmax reads long rows twice.
READS = {
    "aten.nll_loss_forward.default": {0: 0},
    "aten.nll_loss_backward.default": {1: 0},
    "aten._log_softmax.default": {0: 2},
    "aten.native_layer_norm_backward.default": {0: 2, 1: 2},
}
# Kernels of CUDA where that is not one.
LAUNCHES = {"aten.native_layer_norm_backward.default": 2}
# Liger's kernels move each tensor that they are given once, but for these: those written where they
# were read twice; the loss reads logits twice and writes their gradient.
MOVED = {
    "_swiglu_backward_kernel": {"a_ptr": 2, "b_ptr": 2},
    "_triton_rope": {"q_ptr": 2, "k_ptr": 2},
    "liger_cross_entropy_kernel": {"X_ptr": 3},
    "element_mul_kernel": {"X_ptr": 2},
}


def moved(tensors, sizes):
    """Bytes of tensors by the element that they are counted in, doubled; small ones are left out."""
    total = Counter()
    for tensor, times in tensors:
        elements = 1
        for size, stride in zip(tensor.shape, tensor.stride()):
            elements *= size if stride else 1  # a broadcast one has fewer behind it
        for letter, count_ in sizes.items():
            if letter not in "tmcw" and elements in (count_, count_ // 2):
                total[letter] += round(2 * times * tensor.element_size() * elements / count_)
                break
    return total


class Trace(TorchDispatchMode):
    """Tensors that are made and freed, and kernels."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.known, self.events, self.kernels, self.made = {}, [], [], 0

    def note(self, tensor, made=True):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return self.known[key][1]
        name = self.made = self.made + 1

        def freed(_, key=key, name=name):
            self.known.pop(key)
            if made:
                self.events.append(("free", name))

        self.known[key] = (weakref.ref(storage, freed), name)
        if made:
            self.events.append(("new", name, storage.nbytes()))
        return name

    def name(self, tensor):
        entry = self.known.get(tensor.untyped_storage()._cdata)
        return entry[1] if entry else None

    def mark(self, what):
        self.events.append(("mark", what))

    def __torch_dispatch__(self, func, types_, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor, made=False)  # what the code's modules hold
        out = func(*args, **kwargs)
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        for tensor in outputs:
            self.note(tensor)
        if str(func) not in FREE and not (func.is_view and outputs):
            times = READS.get(str(func), {})
            read = [
                (t, times.get(i, 1))
                for i, arg in enumerate(args)
                for t in tree_leaves(arg)
                if isinstance(t, torch.Tensor)
            ]
            self.kernels.append((str(func), moved(read + [(t, 1) for t in outputs], self.sizes)))
        return out


def leave_out_triton(trace):
    """Triton's kernels make no tensors: they are noted, not run."""
    from triton.runtime.interpreter import GridExecutor

    def launch(self, *args, **kwargs):
        given = {**dict(zip(self.arg_names, args)), **kwargs}
        name = self.fn.__name__
        times = MOVED.get(name, {})
        tensors = [(t, times.get(a, 1)) for a, t in given.items() if isinstance(t, torch.Tensor)]
        trace.kernels.append((name, moved(tensors, trace.sizes)))

    GridExecutor.__call__ = launch


class Boundary(torch.autograd.Function):
    """Where a part begins: its gradients end there, and go."""

    @staticmethod
    def forward(ctx, trace, leaf, *tensors):
        ctx.trace = trace
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *grads):
        ctx.trace.results = [ctx.trace.name(g) if g is not None else None for g in grads]
        ctx.trace.mark("done")
        return (None, None, *[None] * len(grads))


class Start(torch.autograd.Function):
    """Where a part ends: backward begins with a gradient that nothing else holds."""

    @staticmethod
    def forward(ctx, trace, *tensors):
        ctx.trace = trace
        ctx.kinds = [(t.shape, t.dtype, t.stride()) for t in tensors]
        return torch.zeros((), requires_grad=True)

    @staticmethod
    def backward(ctx, _):
        grads = tuple(torch.empty_strided(s, st, dtype=d).normal_() for s, d, st in ctx.kinds)
        trace = ctx.trace
        trace.given = [trace.note(g) for g in grads]
        trace.mark("backward")
        trace.kernels.clear()
        return (None, *grads)


def symbol(nbytes, sizes):
    for name, elements in sizes.items():
        if nbytes % elements == 0 and nbytes // elements in (1, 2, 4, 8, 16):
            return f"{nbytes // elements}{name}"
    return None


class CudaList(TorchFunctionMode):
    """What autocast does for CUDA and not for the CPU: these run in fp32."""

    WIDE = {torch.nn.functional.layer_norm, torch.Tensor.pow, torch.pow, torch.nn.functional.softmax}

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        if func not in self.WIDE:
            return func(*args, **(kwargs or {}))
        wide = lambda x: x.float() if isinstance(x, torch.Tensor) and x.dtype == BF16 else x
        return func(*[wide(a) for a in args], **{k: wide(v) for k, v in (kwargs or {}).items()})


def count(make, inputs, weights=(), autocast=False, extra=None):
    """Words and kernels of `make(*inputs)`. inputs: (tensor, letter); weights: parameters; extra: further elements."""
    sizes = {"e": inputs[0].numel(), **SIZES, **(extra or {})}
    if weights:
        sizes["w"] = max(w.numel() for w in weights)
    trace = Trace(sizes)
    leave_out_triton(trace)
    context = contextlib.ExitStack()
    if autocast:
        context.enter_context(torch.autocast("cpu", dtype=BF16))
        context.enter_context(CudaList())
    for w in weights:
        w.grad = None
        w.register_post_accumulate_grad_hook(lambda p: trace.mark("W"))
    with trace:
        leaf = torch.zeros((), requires_grad=True)
        held = list(Boundary.apply(trace, leaf, *(t.detach().clone() for t in inputs)))
        given = [trace.note(t) for t in held]
        trace.events.clear()
        trace.kernels.clear()
        trace.mark("forward")
        with context:
            out = make(held)
        del context
        held.clear()
        trace.mark("end")
        forward_kernels = list(trace.kernels)
        outs = [o for o in (out if isinstance(out, (tuple, list)) else (out,))]
        out_names = [trace.name(o) for o in outs]
        loss = Start.apply(trace, *outs)
        del out, outs
        trace.mark("dropped")
        loss.backward()
        trace.mark("end of all")
    return words(trace, sizes, given, out_names, forward_kernels)


def words(trace, sizes, given, out_names, forward_kernels):
    letters, unused, freed = {}, list("abcefhkmnpqrstuvwxyzABCEFIJKLNPQRSTUVXYZ"), []
    for letter, name in zip("ijl", given):
        letters[name] = letter
    for letter, name in zip(["o", "O"] if len(out_names) == 2 else "o", out_names):
        letters.setdefault(name, letter)
    for letter, name in zip("gGH", trace.given):
        letters[name] = letter
    for letter, name in zip("dDM", trace.results):
        if name is not None:
            letters.setdefault(name, letter)
    forward, backward, small = [], [], set()
    part, alive_inputs = forward, set(given)
    for event in trace.events:
        if event[0] == "mark":
            if event[1] == "dropped":
                forward.extend(f"={letters[n]}" for n in given if n in alive_inputs and letters[n] in "ijl")
            part = None if event[1] == "end" else part
            if event[1] == "backward":
                part = backward
            if event[1] == "W":
                backward.append("W")
            if event[1] == "done":
                part = None
            continue
        name = event[1]
        if event[0] == "free" and name in alive_inputs and part is forward:
            alive_inputs.discard(name)
        if part is None:
            continue
        if event[0] == "new":
            size = symbol(event[2], sizes)
            if name in trace.given:
                continue
            if size is None or size.endswith("w"):
                small.add(name)
                continue
            if name not in letters:
                letters[name] = (unused or freed).pop(0)
            part.append(f"{letters[name]}{size}")
        elif name in letters and name not in small:
            part.append(f"-{letters[name]}")
            freed.append(letters[name])

    # Results that are what was given: another name for it.
    forward += [f"{new}:{letters[n]}" for new, n in zip("oO", out_names) if letters[n] != new]
    backward += [
        f"{new}:{letters[n]}" for new, n in zip("dDM", trace.results) if n is not None and letters[n] != new
    ]
    return {
        "forward": " ".join(forward),
        "backward": " ".join(backward),
        **summary("forward", forward_kernels),
        **summary("backward", trace.kernels),
    }


def summary(way, rows):
    moved = Counter()
    for _, bytes_by_symbol in rows:
        moved.update(bytes_by_symbol)
    text = " ".join(f"{n / 2:g}{letter}" for letter, n in sorted(moved.items()))
    return {
        f"{way}_moves": text,
        f"{way}_launches": sum(LAUNCHES.get(n, 1) for n, _ in rows),
        f"{way}_operations": dict(Counter(n.removeprefix("aten.").split(".")[0] for n, _ in rows)),
    }


def tensor(*shape, dtype=BF16):
    return torch.randn(*shape, dtype=dtype)


def taking(function):
    """A part whose inputs live as long as its own code holds them."""

    def run(held):
        given = list(held)
        held.clear()
        return function(given)

    return run


def heads(dtype, kv=False):
    """Queries or keys as a product leaves them, seen by head."""
    return tensor(BATCH, SEQ, KV_HEADS if kv else HEADS, HEAD, dtype=dtype)


def hf_parts(precision):
    from transformers import LlamaConfig
    from transformers.activations import ACT2FN
    from transformers.loss.loss_utils import ForCausalLMLoss
    from transformers.models.llama import modeling_llama as llama

    autocast = precision != "bf16"
    dtype = torch.float32 if precision == "fp32" else BF16
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        vocab_size=VOCAB,
    )
    norm = llama.LlamaRMSNorm(HIDDEN).to(dtype)
    yield "rms_norm", count(
        lambda held: norm(held.pop()), [tensor(BATCH, SEQ, HIDDEN, dtype=dtype)], [norm.weight], autocast
    )
    head_norm = llama.LlamaRMSNorm(HEAD).to(dtype)
    yield "head_norm", count(lambda held: head_norm(held.pop()), [heads(BF16)], [head_norm.weight], autocast)
    layer_norm = torch.nn.LayerNorm(HIDDEN).to(dtype)
    yield "layer_norm", count(
        lambda held: layer_norm(held.pop()),
        [tensor(BATCH, SEQ, HIDDEN, dtype=dtype)],
        [layer_norm.weight],
        autocast,
    )
    linear = torch.nn.Linear(HIDDEN, FFN, bias=False).to(dtype)
    yield "linear", count(
        lambda held: linear(held.pop()), [tensor(BATCH, SEQ, HIDDEN, dtype=dtype)], [linear.weight], autocast
    )
    rotary = llama.LlamaRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1, dtype=dtype), torch.arange(SEQ)[None])

    def rotate(held):
        q, k = (x.transpose(1, 2) for x in held)
        held.clear()
        q, k = llama.apply_rotary_pos_emb(q, k, cos, sin)
        return q.to(BF16), k.to(BF16)  # under autocast attention casts what is fp32 then

    yield "rotary", count(rotate, [heads(BF16), heads(BF16, True)], (), autocast)

    def swiglu(held):
        gate = ACT2FN["silu"](held.pop(0))
        return gate * held.pop()

    yield "swiglu", count(swiglu, [tensor(BATCH, SEQ, FFN)] * 2, (), autocast)
    for name in ("gelu_new", "gelu_pytorch_tanh"):
        yield name, count(lambda held: ACT2FN[name](held.pop()), [tensor(BATCH, SEQ, FFN)], (), autocast)

    def add(held):
        residual, x = held
        held.clear()
        return residual + x

    yield "add", count(
        add, [tensor(BATCH, SEQ, HIDDEN, dtype=dtype), tensor(BATCH, SEQ, HIDDEN)], (), autocast
    )
    mask = torch.zeros(1, 1, SEQ, SEQ, dtype=dtype)
    module = types.SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=True)

    def eager(held):
        q, k, v = (x.transpose(1, 2) for x in held)
        held.clear()
        out, weights = llama.eager_attention_forward(module, q, k, v, mask, HEAD**-0.5)
        return out

    yield "attention_eager", count(eager, [heads(BF16), heads(BF16, True), heads(BF16, True)], (), autocast)
    labels = torch.randint(0, VOCAB, (BATCH, SEQ))

    def loss(held):
        logits = held.pop()
        return ForCausalLMLoss(logits, labels, VOCAB, num_items_in_batch=torch.tensor(TOKENS))

    yield "loss", count(loss, [tensor(BATCH, SEQ, VOCAB)], (), autocast)


def liger_parts(precision):
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    from liger_kernel.transformers.rms_norm import LigerRMSNorm
    from liger_kernel.transformers.rope import liger_rotary_pos_emb
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    autocast = precision != "bf16"
    dtype = torch.float32 if precision == "fp32" else BF16
    norm = LigerRMSNorm(HIDDEN).to(dtype)
    yield "rms_norm", count(
        lambda held: norm(held.pop()), [tensor(BATCH, SEQ, HIDDEN, dtype=dtype)], [norm.weight], autocast
    )
    cos, sin = torch.ones(1, SEQ, HEAD, dtype=dtype), torch.ones(1, SEQ, HEAD, dtype=dtype)

    def rotate(held):
        q, k = (x.transpose(1, 2) for x in held)
        held.clear()
        q, k = liger_rotary_pos_emb(q, k, cos, sin)
        return q, k

    head_norm = LigerRMSNorm(HEAD).to(dtype)
    yield "head_norm", count(lambda held: head_norm(held.pop()), [heads(BF16)], [head_norm.weight], autocast)
    yield "rotary", count(rotate, [heads(BF16), heads(BF16, True)], (), autocast)
    yield "swiglu", count(
        lambda held: LigerSiLUMulFunction.apply(held.pop(0), held.pop(0)),
        [tensor(BATCH, SEQ, FFN)] * 2,
        (),
        autocast,
    )
    head = torch.nn.Linear(HIDDEN, VOCAB, bias=False).to(dtype)
    labels = torch.randint(0, VOCAB, (TOKENS,))
    yield "head_and_loss", count(
        lambda held: LigerFusedLinearCrossEntropyFunction.apply(
            held.pop().view(-1, HIDDEN), head.weight, labels
        )[0],
        [tensor(BATCH, SEQ, HIDDEN, dtype=dtype)],
        [head.weight],
        autocast,
    )


def torchtune_parts(precision):
    if precision != "bf16":
        return  # its recipes have no autocast
    from torchtune.modules import RMSNorm, RotaryPositionalEmbeddings
    from torchtune.modules.loss import CEWithChunkedOutputLoss

    norm = RMSNorm(HIDDEN).to(BF16)
    yield "rms_norm", count(lambda held: norm(held.pop()), [tensor(BATCH, SEQ, HIDDEN)], [norm.scale])
    rotary = RotaryPositionalEmbeddings(HEAD, SEQ)
    # MultiHeadAttention rotates queries, then makes keys and rotates them.
    yield "rotary", count(
        lambda held: (rotary(held.pop(0)), rotary(held.pop(0))), [heads(BF16), heads(BF16, True)]
    )

    def split_heads(held):
        q, k, v = held
        held.clear()
        shape = (BATCH, KV_HEADS, HEADS // KV_HEADS, -1, HEAD)
        k, v = (x.transpose(1, 2).unsqueeze(2).expand(shape).flatten(1, 2) for x in (k, v))
        return k, v

    yield "shared_heads", count(split_heads, [heads(BF16), heads(BF16, True), heads(BF16, True)])
    loss = CEWithChunkedOutputLoss()
    labels = torch.randint(0, VOCAB, (BATCH, SEQ))

    def one_chunk(held):
        return loss.compute_cross_entropy(held.pop().reshape(-1, VOCAB), labels.reshape(-1))

    yield "loss", count(one_chunk, [tensor(BATCH, SEQ, VOCAB)])


def torchtitan_parts(precision):
    if precision != "bf16":
        return  # FSDP2 casts
    from torchtitan.components.loss import cross_entropy_loss
    from torchtitan.models.common.rope import ComplexRoPE

    rope = ComplexRoPE(ComplexRoPE.Config(dim=HEAD, max_seq_len=SEQ))
    cache = rope.cache.view(1, SEQ, 1, HEAD // 2)

    def rotate(held):
        q, k = held
        held.clear()
        q, k = rope.apply_rotary_emb(q, k, cache)
        return q, k

    yield "rotary", count(rotate, [heads(BF16), heads(BF16, True)])
    labels = torch.randint(0, VOCAB, (BATCH, SEQ))
    yield "loss", count(lambda held: cross_entropy_loss(held.pop(), labels), [tensor(BATCH, SEQ, VOCAB)])


def composer_parts(precision):
    if precision != "bf16":
        return  # FSDP casts, and its LayerNorm turns autocast off
    if not LLM_FOUNDRY:
        raise ImportError("--llm-foundry is not given")

    class Registry:
        register = staticmethod(lambda name, func=None: None)
        register_class = staticmethod(lambda name: lambda cls: cls)

    # Its package imports Composer: a registry that keeps nothing stands in for it.
    stand_in = types.ModuleType("llmfoundry.layers_registry")
    stand_in.norms = Registry
    sys.modules["llmfoundry"], sys.modules["llmfoundry.layers_registry"] = (
        types.ModuleType("llmfoundry"),
        stand_in,
    )
    path = os.path.join(LLM_FOUNDRY, "llmfoundry/models/layers/norm.py")
    module = types.ModuleType("norm")
    with open(path, encoding="utf-8") as source:
        exec(compile(source.read(), path, "exec"), module.__dict__)
    norm = module.LPLayerNorm(HIDDEN).to(BF16)
    yield "layer_norm", count(lambda held: norm(held.pop()), [tensor(BATCH, SEQ, HIDDEN)], [norm.weight])
    yield "gelu", count(
        lambda held: torch.nn.functional.gelu(held.pop(), approximate="none"), [tensor(BATCH, SEQ, FFN)]
    )


STYLES = {
    "hf": hf_parts,
    "liger": liger_parts,
    "torchtune": torchtune_parts,
    "torchtitan": torchtitan_parts,
    "composer": composer_parts,
}
LLM_FOUNDRY = ""


def main():
    global LLM_FOUNDRY
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llm-foundry", default="", help="a checkout of it")
    parser.add_argument("--style", choices=STYLES, help="this one alone")
    args = parser.parse_args()
    LLM_FOUNDRY = args.llm_foundry
    for style, parts in STYLES.items():
        if args.style not in (None, style):
            continue
        try:
            for precision in PRECISIONS:
                for name, row in parts(precision):
                    print(
                        json.dumps({"style": style, "part": name, "precision": precision, **row}), flush=True
                    )
        except ImportError as error:
            print(f"{style}: left out: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
