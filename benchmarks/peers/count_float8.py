"""Counts what torch.compile makes of a Llama layer whose linears are torchao's: bytes that its fused kernels read and
write, how many there are, and what is kept for backward. No GPU is needed: the layer is traced on the CPU without data,
and inductor's scheduler is asked for its kernels as on an H200.

    python benchmarks/peers/count_float8.py >tests/data/runtimes/float8_counts.jsonl

PyTorch 2.15 and triton, torchao 0.18. Attention is an operation of its own. Elements: e hidden, q queries, k keys, f the
MLP's columns; Wq, Wk, Wf: weights of q and o, of k and v, and of the MLP."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F


class H200:
    name, major, minor, multi_processor_count, warp_size = "H200", 9, 0, 132, 32
    max_threads_per_multi_processor, max_threads_per_block = 2048, 1024
    regs_per_multiprocessor, total_memory, gcnArchName = 65536, 140 << 30, ""
    shared_memory_per_block, shared_memory_per_block_optin = 49152, 232448
    shared_memory_per_multiprocessor, L2_cache_size = 233472, 50 << 20


def pretend():
    cuda = torch.cuda
    cuda.is_available, cuda.device_count, cuda.current_device = lambda: True, lambda: 1, lambda: 0
    cuda.get_device_capability, cuda.get_device_name = lambda d=None: (9, 0), lambda d=None: "H200"
    cuda._get_device_properties = lambda d=None: H200()
    cuda._lazy_init, cuda.synchronize = lambda: None, lambda *a: None
    cuda.get_rng_state, cuda.set_rng_state = lambda *a: torch.get_rng_state(), lambda *a: None
    from torch._dynamo.device_interface import CudaInterface

    CudaInterface.get_device_properties = staticmethod(lambda d=None: H200())
    CudaInterface.get_compute_capability = staticmethod(lambda d=None: 90)
    # Patterns of attention and padding are made on the device; none is in the layer.
    import torch._inductor.fx_passes.joint_graph as joint
    import torch._inductor.fx_passes.post_grad as post

    joint.lazy_init = post.lazy_init = lambda *a, **k: None


pretend()
from torch._functorch.aot_autograd import aot_function  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402
from torch._inductor.debug import DebugContext  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes.joint_graph import joint_graph_passes  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: E402

BATCH, SEQ, HIDDEN, HEADS, KV_HEADS, HEAD, FFN = 8, 2048, 2048, 32, 8, 128, 6144
TOKENS, QUERIES, KEYS = BATCH * SEQ, HEADS * HEAD, KV_HEADS * HEAD
ELEMENTS = {
    TOKENS * HIDDEN: "e",
    TOKENS * QUERIES: "q",
    TOKENS * KEYS: "k",
    TOKENS * FFN: "f",
    HIDDEN * QUERIES: "Wq",
    HIDDEN * KEYS: "Wk",
    HIDDEN * FFN: "Wf",
}
PARAMS = 9


def like(t):
    shape = (t.shape[0], t.shape[2], t.shape[1], t.shape[3])
    return torch.empty(shape, dtype=t.dtype, device=t.device).transpose(1, 2)


@torch.library.custom_op("count::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("count::attention_backward", mutates_args=())
def attention_backward(
    g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, sums: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return like(q), like(k), like(v)


attention.register_fake(lambda q, k, v: (like(q), q.new_empty(q.shape[:3], dtype=torch.float32)))
attention_backward.register_fake(lambda g, q, k, v, o, sums: (like(q), like(k), like(v)))
attention.register_autograd(
    lambda ctx, g, _: attention_backward(g, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
)


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)  # noqa: E731
        self.norm1 = nn.Parameter(torch.ones(HIDDEN))
        self.q, self.k, self.v = linear(HIDDEN, QUERIES), linear(HIDDEN, KEYS), linear(HIDDEN, KEYS)
        self.o = linear(QUERIES, HIDDEN)
        self.norm2 = nn.Parameter(torch.ones(HIDDEN))
        self.gate, self.up, self.down = linear(HIDDEN, FFN), linear(HIDDEN, FFN), linear(FFN, HIDDEN)

    def forward(self, x, cos, sin):
        h = F.rms_norm(x, (HIDDEN,), self.norm1, 1e-5)
        heads = lambda t: t.view(BATCH, SEQ, -1, HEAD).transpose(1, 2)  # noqa: E731
        q, k = turned(heads(self.q(h)), cos, sin), turned(heads(self.k(h)), cos, sin)
        a = attention(q, k, heads(self.v(h)))[0]
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, SEQ, QUERIES))
        h = F.rms_norm(x, (HIDDEN,), self.norm2, 1e-5)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def element_of(buffer):
    count = 1
    for size in buffer.get_size():
        count *= int(size)
    return ELEMENTS.get(count)


def kernels(gm, inputs, mode, is_backward):
    for node in gm.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda")}
    inputs = [torch.empty_strided(i.shape, i.stride(), dtype=i.dtype, device="cuda") for i in inputs]
    with torch.no_grad():
        gm = make_fx(gm)(*inputs)
    post_grad_passes(gm, False)
    graph = GraphLowering(gm, example_inputs=inputs, is_backward=is_backward)
    handlers = V.set_graph_handler(graph), V.set_extern_kernel_nodes([]), V.set_fake_mode(mode)
    moves, launches = {}, 0
    with handlers[0], handlers[1], handlers[2], V.set_debug_handler(DebugContext()):
        graph.run(*inputs)
        graph.init_wrapper_code()
        graph._update_scheduler()
        for node in graph.scheduler.nodes:
            if isinstance(node, (ExternKernelSchedulerNode, NopKernelSchedulerNode)):
                continue
            launches += 1
            own, access = node.get_buffer_names(), node.read_writes
            names = {d.name for d in access.reads if d.name not in own}
            names = list(names) + [d.name for d in access.writes if d.name not in graph.removed_buffers]
            for name in names:
                buffer = graph.try_get_buffer(name) or graph.graph_inputs[name]
                element = element_of(buffer)
                if element:
                    moves[element] = moves.get(element, 0) + graph.get_dtype(name).itemsize
    return dict(sorted(moves.items())), launches


def count(recipe, fp32):
    layer = Layer()
    if recipe != "none":
        convert_to_float8_training(layer, config=Float8LinearConfig.from_recipe_name(recipe))
    params = dict(layer.named_parameters())
    row = {"recipe": recipe, "weights": "fp32" if fp32 else "16 bit"}

    def partition(graph, inputs, **options):
        joint_graph_passes(graph)
        # torch.compile takes parameters to be there at any rate.
        options["static_lifetime_input_indices"] = list(range(3, 3 + PARAMS))
        return min_cut_rematerialization_partition(graph, inputs, **options)

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        make = lambda shape, dtype: torch.empty(shape, dtype=dtype, requires_grad=True)  # noqa: E731
        dtype = torch.float32 if fp32 else torch.bfloat16
        values = [make(p.shape, dtype) for p in params.values()]
        x = make((BATCH, SEQ, HIDDEN), torch.bfloat16)
        cos, sin = (torch.empty(SEQ, HEAD, dtype=torch.bfloat16) for _ in range(2))

        def run(x, cos, sin, *values):
            with torch.autocast("cpu", torch.bfloat16, enabled=fp32):
                return torch.func.functional_call(layer, dict(zip(params, values)), (x, cos, sin))

        def forward(gm, inputs):
            outputs = next(n for n in gm.graph.nodes if n.op == "output").args[0][1:]
            kept = {}
            for out in outputs:
                value = out.meta.get("val")
                is_weight = out.op == "placeholder" and out.name not in ("primals_1",)
                if not isinstance(value, torch.Tensor) or is_weight:
                    continue
                element = ELEMENTS.get(value.numel())
                if element:
                    kept[element] = kept.get(element, 0) + value.element_size()
            row["kept"] = dict(sorted(kept.items()))
            row["forward"], row["forward_launches"] = kernels(gm, inputs, mode, False)
            return gm.forward

        def backward(gm, inputs):
            row["backward"], row["backward_launches"] = kernels(gm, inputs, mode, True)
            return gm.forward

        compiled = aot_function(
            run,
            fw_compiler=forward,
            bw_compiler=backward,
            partition_fn=partition,
            decompositions=select_decomp_table(),
        )
        out = compiled(x, cos, sin, *values)
        out.backward(torch.empty_like(out))
    return row


for recipe in ("none", "tensorwise", "rowwise"):
    for fp32 in (False, True):
        print(json.dumps(count(recipe, fp32)), flush=True)
