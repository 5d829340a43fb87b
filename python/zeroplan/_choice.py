"""The record of a choice, made of core/settings/setting_rows.inc (docs/adding-a-setting.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class ChoiceRecord:
    """How a model is trained."""

    gpus: int
    """GPUs, one rank each"""
    seq_len: int
    """tokens of a sequence"""
    micro_batch: int
    """sequences of a micro-step of one GPU, or of GPUs that share them"""
    grad_accum: int
    """micro-steps of an optimizer step"""
    global_batch: int
    """sequences of an optimizer step over all GPUs"""
    dtype: str
    """precision of parameters and compute ("bf16", "fp16" or "fp32")"""
    grad_accum_dtype: str
    """precision in which gradients are summed over micro-steps ("bf16", "fp16" or "fp32")"""
    communication_dtype: str
    """precision in which GPUs reduce gradients ("bf16", "fp16" or "fp32")"""
    master_weights: str
    """master weights of a run of 16 bits ("fp32", "split" or "16bit")"""
    optimizer_states: str
    """precision of Adam's two moments ("fp32", "bf16" or "8bit")"""
    matmul_dtype: str
    """precision of the matmuls of layers' linears ("fp8", "bf16", "fp16" or "fp32")"""
    fp8_recipe: Optional[str]
    """part of a matrix with a scale of its own in FP8, none without FP8 ("tensor" or "blocks")"""
    fp8_gradients: Optional[str]
    """format of the gradients of activations in FP8 ("e4m3" or "e5m2")"""
    fp8_least_side: Optional[int]
    """least smaller side of a linear that multiplies in FP8"""
    stage: int
    """ZeRO stage"""
    sequence_ranks: int
    """GPUs that share each sequence"""
    shard_group: int
    """GPUs that share what the stage shards, 1 at stage 0"""
    across_groups: Optional[str]
    """states that shard groups share with each other, none with one group ("replicate", "optimizer"
    or "gradients")"""
    offload_optimizer: str
    """home of optimizer states ("none", "cpu" or "nvme")"""
    offload_ratio: float
    """share of the optimizer that is offloaded"""
    offload_param: str
    """home of parameter shards ("none", "cpu" or "nvme")"""
    pin_memory: bool
    """whether offloaded states are staged in page-locked memory"""
    checkpointing: str
    """recompute of activations ("none", "selective", "products" or "full")"""
    checkpoint_every: int
    """layers that are recomputed together; 0 unless checkpointing is full"""
    checkpoint_layers: int
    """number of layers, from the first on, that checkpointing covers; 0: all"""
    checkpointing_above: str
    """recompute in the other layers ("none" or "selective")"""
    offload_activations: str
    """home of the activations that layers keep for the backward pass, none for the GPU ("none" or
    "cpu")"""
    offload_activation_layers: int
    """number of layers whose activations are offloaded; 0: all but the last"""
    deterministic: bool
    """whether a GPU gives the same results from run to run"""
    optimizer_in_backward: bool
    """whether parameters are updated in the backward pass"""
