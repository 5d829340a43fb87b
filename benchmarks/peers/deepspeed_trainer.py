"""Steps of DeepSpeed, for pytorch_train.py. The settings are those of a plain DeepSpeed config:
overlap_comm and contiguous_gradients on, pinned host memory, other keys at their defaults."""
import contextlib
import math

import deepspeed
import llama_model
import torch
import torch.distributed as dist
from deepspeed.sequence.layer import DistributedAttention
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss, TiledMLP
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


def make_config(args):
    zero = {"stage": args.stage, "overlap_comm": True, "contiguous_gradients": True}
    if args.offload_optimizer != "none":
        zero["offload_optimizer"] = {"device": args.offload_optimizer, "pin_memory": True}
    if args.offload_param != "none":
        zero["offload_param"] = {"device": args.offload_param, "pin_memory": True}
    adamw = {"lr": args.lr, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    return {"train_micro_batch_size_per_gpu": args.micro_batch,
            "gradient_accumulation_steps": args.grad_accum, "bf16": {"enabled": True},
            "gradient_clipping": 1.0, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": adamw}, "steps_per_print": 10**9}


def use_alst(model, args):
    """What ALST does on one GPU: MLPs in tiles of about as many tokens as the model is wide, the loss in tiles of
    about 1 GB of fp32 logits, blocks recomputed, with their inputs in host memory until then."""
    tokens, shape = args.micro_batch * args.rank_tokens, args.shape
    shards = math.ceil(tokens * shape.padded_vocab * 4 / 2**30)
    while tokens % shards:  # a mean of means
        shards += 1

    def tiled_mlp(block, h):
        weights = [block.gate_proj.weight, block.up_proj.weight, block.down_proj.weight]
        return TiledMLP.apply(type(block).mlp, block, h, math.ceil(args.rank_tokens / shape.hidden), weights)

    def tile_loss(model, x, targets):
        return model.head_loss(model.lm_head(x)[None], targets[None])

    def loss(x_BTC, targets_BT):
        return TiledFusedLogitsLoss.apply(tile_loss, model, x_BTC, targets_BT, None, shards,
                                          [model.lm_head.weight], "mean")

    for block in model.blocks:
        block.mlp = tiled_mlp.__get__(block)
    model.loss = loss
    deepspeed.checkpointing.configure(None, checkpoint_in_cpu=True)
    model.run_block = lambda block, x, cos, sin: deepspeed.checkpointing.checkpoint(
        lambda x_BTC: block(x_BTC, cos, sin), x)


def share_sequences(model, args):
    """DeepSpeed's Ulysses over all ranks: attention of all positions and a part of the heads."""
    attend = llama_model.attend

    def local(q_BTHD, k_BTGD, v_BTGD, window):
        y = attend(*(x.transpose(1, 2) for x in (q_BTHD, k_BTGD, v_BTGD)), window)
        return y.unflatten(-1, q_BTHD.shape[2:])

    exchange = DistributedAttention(local, dist.group.WORLD, scatter_idx=2, gather_idx=1)
    llama_model.attend = lambda q_BHTD, k_BGTD, v_BGTD, window: exchange(
        *(x.transpose(1, 2) for x in (q_BHTD, k_BGTD, v_BGTD)), 0, None, window).flatten(2)
    model.first_position = dist.get_rank() * args.rank_tokens


class DeepSpeedTrainer:
    """A model whose parameters are made in bf16, at stage 3 each in its place from the start."""

    def __init__(self, args, device, make_model, batches, compile_functions):
        self.args, self.device, self.batches = args, device, batches
        config = make_config(args)
        place = contextlib.nullcontext()
        if args.stage == 3:
            place = deepspeed.zero.Init(config_dict_or_path=config)
        torch.manual_seed(args.seed)
        with place:
            torch.set_default_dtype(torch.bfloat16)
            with torch.device(device):
                model = make_model(args.shape)
            torch.set_default_dtype(torch.float32)
        for index, block in enumerate(model.blocks):
            if args.recompute:
                block = checkpoint_wrapper(block, preserve_rng_state=False)
            if args.compile == "block":  # not as full graphs: DeepSpeed's hooks break them
                block.compile(mode=args.compile_mode, dynamic=False)
            model.blocks[index] = block
        compile_functions(model, args)
        if args.alst:
            use_alst(model, args)
        if args.sequence_ranks > 1:
            share_sequences(model, args)
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                               config=config)

    def step(self):
        """Returns the mean loss of this rank's micro-steps, on the device."""
        total = torch.zeros((), device=self.device)
        for _ in range(self.args.grad_accum):
            loss = self.engine(*self.batches.next())
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach()
        return total / self.args.grad_accum
