"""Plans ZeRO training of transformers: what fits, how fast, and what is best.

    import zeroplan
    plan = zeroplan.plan(model="gpt2-xl", gpus=8, hw="dgx-a100-40gb", gpu_memory="24GB")
    print(plan.choice, plan.tokens_per_second)
    zeroplan.estimate(params="10B", gpus=16, hw="dgx-a100-40gb").to_pandas()

Arguments are the options of `zeroplan estimate` and `zeroplan plan`, with underscores; help() of the
functions has them all. docs/python.md tells more."""

from __future__ import annotations

import inspect
import numbers
import os
from typing import Any, Iterable, Optional, Union

from . import _core
from ._errors import Error, NothingFits
from ._machines import Machine, Machines
from ._results import (
    AxisBytes,
    Change,
    Choice,
    Claim,
    Cluster,
    Estimate,
    EstimatedChoice,
    GpuBytes,
    HostBytes,
    Model,
    Plan,
    Predicted,
    Search,
    Settings,
    Stage,
    StepSeconds,
    Why,
)
from ._runs import (
    Data,
    DocumentTokens,
    EpochSequences,
    Interruptions,
    MicroBatchTokens,
    SequenceCuts,
    Training,
)

__version__ = _core.version()
__all__ = [
    "AxisBytes",
    "Change",
    "Choice",
    "Claim",
    "Cluster",
    "Data",
    "DocumentTokens",
    "EpochSequences",
    "Error",
    "Estimate",
    "EstimatedChoice",
    "GpuBytes",
    "HostBytes",
    "Interruptions",
    "Machine",
    "Machines",
    "MicroBatchTokens",
    "Model",
    "NothingFits",
    "Plan",
    "Predicted",
    "Search",
    "SequenceCuts",
    "Settings",
    "Stage",
    "StepSeconds",
    "Training",
    "Why",
    "estimate",
    "machines",
    "plan",
    "why",
]

_Path = Union[str, "os.PathLike[str]"]
_Count = Union[int, float, str]  # 8, 10e9, "10B", "24GB"
_Some = Union[int, str, Iterable[Union[int, str]]]  # 2, "cpu", [2, 3], "all"


def _text(name: str, value: Any) -> str:
    """As the command line has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return ",".join(_text(name, one) for one in value)
    raise TypeError(f"{name}: {type(value).__name__} is not allowed; use a text, a number or a list")


def _words(given: dict[str, Any]) -> list[tuple[str, str]]:
    words = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        each = [value]
        if name == "data" and not isinstance(value, (str, os.PathLike)):
            # Paths, which may have commas, are an option each.
            each = given[name] = list(value)
        words += [(name.replace("_", "-"), _text(name, one)) for one in each]
    return words


def _call(name: str, given: dict[str, Any]) -> str:
    """As Python has it, for the page's end."""
    arguments = (f"{key}={value!r}" for key, value in given.items() if value is not None and value is not False)
    return f"zeroplan.{name}({', '.join(arguments)})"


def estimate(
    *,
    model: Optional[_Path] = None,
    params: Optional[_Count] = None,
    family: Optional[str] = None,
    freeze: Optional[str] = None,
    image_tokens: Optional[_Count] = None,
    method: Optional[str] = None,
    lora_rank: Optional[_Count] = None,
    lora_alpha: Optional[float] = None,
    lora_dropout: Optional[float] = None,
    lora_targets: Optional[str] = None,
    lora_save: Optional[str] = None,
    lora_tokens: Optional[str] = None,
    rslora: bool = False,
    gpus: Optional[_Count] = None,
    gpus_per_node: Optional[_Count] = None,
    hw: Optional[_Path] = None,
    network: Optional[str] = None,
    intra_node_bandwidth: Optional[str] = None,
    gpu_memory: Optional[_Count] = None,
    host_memory: Optional[_Count] = None,
    pinned_limit: Optional[_Count] = None,
    nvme_capacity: Optional[_Count] = None,
    nvme_drives: Optional[_Count] = None,
    gpu_reserve: Optional[_Count] = None,
    host_reserve: Optional[_Count] = None,
    seq_len: Optional[_Count] = None,
    micro_batch: Optional[_Count] = None,
    grad_accum: Optional[_Count] = None,
    global_batch: Optional[_Count] = None,
    global_batch_tokens: Optional[_Count] = None,
    dtype: Optional[str] = None,
    grad_accum_dtype: Optional[str] = None,
    communication_dtype: Optional[str] = None,
    master_weights: Optional[str] = None,
    optimizer_states: Optional[str] = None,
    matmul_dtype: Optional[str] = None,
    fp8_recipe: Optional[str] = None,
    fp8_gradients: Optional[str] = None,
    stage: Optional[_Some] = None,
    sequence_ranks: Optional[_Count] = None,
    shard_group: Optional[_Count] = None,
    across_groups: Optional[str] = None,
    offload_optimizer: Optional[_Some] = None,
    offload_ratio: Optional[float] = None,
    offload_param: Optional[_Some] = None,
    pin_memory: Optional[str] = None,
    checkpointing: Optional[str] = None,
    checkpoint_every: Optional[_Count] = None,
    checkpoint_layers: Optional[_Count] = None,
    checkpointing_above: Optional[str] = None,
    offload_activations: bool = False,
    offload_activation_layers: Optional[_Count] = None,
    config: Optional[_Path] = None,
    deterministic: bool = False,
    async_save: Optional[str] = None,
    packing: Optional[str] = None,
    tokens: Optional[_Count] = None,
    gpu_hour_price: Optional[float] = None,
    interruptions: Optional[str] = None,
    notice: Optional[str] = None,
    restart_time: Optional[str] = None,
    data: Optional[Union[_Path, Iterable[_Path]]] = None,
    epochs: Optional[float] = None,
    tokenizer: Optional[_Path] = None,
    map: Optional[str] = None,
    text_field: Optional[str] = None,
    train_on: Optional[str] = None,
    skip_bad: Optional[_Count] = None,
    no_special_tokens: bool = False,
    truncate: bool = False,
    runtime: Optional[str] = None,
    compile: Optional[str] = None,
    code: Optional[str] = None,
    attn: Optional[str] = None,
    param_dtype: Optional[str] = None,
    optim: Optional[str] = None,
    float8: Optional[str] = None,
    optimizer_in_backward: bool = False,
    kbit: bool = False,
    tiled_mlp: bool = False,
    expandable_segments: bool = False,
) -> Estimate:
    """Memory and step time of every ZeRO stage and offload choice, whether it fits or not.

    Raises zeroplan.Error with the command line's message.
    """
    given = locals()
    return Estimate._of(_core.estimate(_words(given)), _call("estimate", given))


def plan(
    *,
    model: Optional[_Path] = None,
    params: Optional[_Count] = None,
    family: Optional[str] = None,
    freeze: Optional[str] = None,
    image_tokens: Optional[_Count] = None,
    method: Optional[str] = None,
    lora_rank: Optional[_Count] = None,
    lora_alpha: Optional[float] = None,
    lora_dropout: Optional[float] = None,
    lora_targets: Optional[str] = None,
    lora_save: Optional[str] = None,
    lora_tokens: Optional[str] = None,
    rslora: bool = False,
    gpus: Optional[_Some] = None,
    gpus_per_node: Optional[_Count] = None,
    hw: Optional[Union[_Path, Iterable[str]]] = None,
    network: Optional[str] = None,
    intra_node_bandwidth: Optional[str] = None,
    gpu_memory: Optional[_Count] = None,
    host_memory: Optional[_Count] = None,
    pinned_limit: Optional[_Count] = None,
    nvme_capacity: Optional[_Count] = None,
    nvme_drives: Optional[_Count] = None,
    gpu_reserve: Optional[_Count] = None,
    host_reserve: Optional[_Count] = None,
    seq_len: Optional[_Count] = None,
    micro_batch: Optional[_Count] = None,
    grad_accum: Optional[_Count] = None,
    global_batch: Optional[_Count] = None,
    global_batch_tokens: Optional[_Count] = None,
    dtype: Optional[str] = None,
    grad_accum_dtype: Optional[str] = None,
    communication_dtype: Optional[str] = None,
    master_weights: Optional[str] = None,
    optimizer_states: Optional[str] = None,
    matmul_dtype: Optional[str] = None,
    fp8_recipe: Optional[str] = None,
    fp8_gradients: Optional[str] = None,
    stage: Optional[_Some] = None,
    sequence_ranks: Optional[_Some] = None,
    shard_group: Optional[_Count] = None,
    across_groups: Optional[str] = None,
    offload_optimizer: Optional[_Some] = None,
    offload_ratio: Optional[float] = None,
    offload_param: Optional[_Some] = None,
    pin_memory: Optional[str] = None,
    checkpointing: Optional[str] = None,
    checkpoint_every: Optional[_Count] = None,
    checkpoint_layers: Optional[_Count] = None,
    checkpointing_above: Optional[str] = None,
    offload_activations: bool = False,
    offload_activation_layers: Optional[_Count] = None,
    config: Optional[_Path] = None,
    deterministic: bool = False,
    async_save: Optional[str] = None,
    packing: Optional[str] = None,
    largest: Optional[str] = None,
    tokens: Optional[_Count] = None,
    gpu_hour_price: Optional[float] = None,
    interruptions: Optional[str] = None,
    notice: Optional[str] = None,
    restart_time: Optional[str] = None,
    prices: Optional[_Path] = None,
    deadline: Optional[str] = None,
    budget: Optional[float] = None,
    data: Optional[Union[_Path, Iterable[_Path]]] = None,
    epochs: Optional[float] = None,
    tokenizer: Optional[_Path] = None,
    map: Optional[str] = None,
    text_field: Optional[str] = None,
    train_on: Optional[str] = None,
    skip_bad: Optional[_Count] = None,
    no_special_tokens: bool = False,
    truncate: bool = False,
    runtime: Optional[str] = None,
    compile: Optional[str] = None,
    code: Optional[str] = None,
    attn: Optional[str] = None,
    param_dtype: Optional[str] = None,
    optim: Optional[str] = None,
    float8: Optional[str] = None,
    optimizer_in_backward: bool = False,
    kbit: bool = False,
    tiled_mlp: bool = False,
    expandable_segments: bool = False,
    objective: Optional[str] = None,
    allow: Optional[_Some] = None,
    quick: bool = False,
    effort: Optional[float] = None,
) -> Plan:
    """The best stage, offload, recompute and batch, and why the others lose.

    Other Python threads run meanwhile. Raises zeroplan.NothingFits where nothing fits, whose text names
    the smallest change that would, and else zeroplan.Error; both have the command line's message.
    """
    given = locals()
    return Plan._of(_core.plan(_words(given)), _call("plan", given))


def machines(
    hw: Union[_Path, Iterable[str]] = "any", gpus: Optional[_Some] = None, **arguments: Any
) -> Machines:
    """The best plan of each of several machines, and what a run takes there of time, money and energy.

    `hw`: names, or "any" for all built-in ones. Further arguments are those of plan(); `objective` is
    "time", "cost" or "energy". Other Python threads run meanwhile. Raises zeroplan.Error with the command
    line's message, and nothing where nothing fits: see `best`.
    """
    unknown = arguments.keys() - inspect.signature(plan).parameters.keys()
    if unknown:
        raise TypeError(f"machines() got an unexpected keyword argument '{min(unknown)}'; those of plan() are known")
    given = {"hw": hw, "gpus": gpus, **arguments}
    return Machines._of(_core.machines(_words(given)), _call("machines", given))


def why(
    log: _Path,
    *,
    model: Optional[_Path] = None,
    params: Optional[_Count] = None,
    family: Optional[str] = None,
    freeze: Optional[str] = None,
    image_tokens: Optional[_Count] = None,
    method: Optional[str] = None,
    lora_rank: Optional[_Count] = None,
    lora_alpha: Optional[float] = None,
    lora_dropout: Optional[float] = None,
    lora_targets: Optional[str] = None,
    lora_save: Optional[str] = None,
    lora_tokens: Optional[str] = None,
    rslora: bool = False,
    gpus: Optional[_Count] = None,
    gpus_per_node: Optional[_Count] = None,
    hw: Optional[_Path] = None,
    network: Optional[str] = None,
    intra_node_bandwidth: Optional[str] = None,
    gpu_memory: Optional[_Count] = None,
    host_memory: Optional[_Count] = None,
    pinned_limit: Optional[_Count] = None,
    nvme_capacity: Optional[_Count] = None,
    nvme_drives: Optional[_Count] = None,
    gpu_reserve: Optional[_Count] = None,
    host_reserve: Optional[_Count] = None,
    seq_len: Optional[_Count] = None,
    micro_batch: Optional[_Count] = None,
    grad_accum: Optional[_Count] = None,
    global_batch: Optional[_Count] = None,
    global_batch_tokens: Optional[_Count] = None,
    dtype: Optional[str] = None,
    grad_accum_dtype: Optional[str] = None,
    communication_dtype: Optional[str] = None,
    master_weights: Optional[str] = None,
    optimizer_states: Optional[str] = None,
    matmul_dtype: Optional[str] = None,
    fp8_recipe: Optional[str] = None,
    fp8_gradients: Optional[str] = None,
    stage: Optional[_Some] = None,
    sequence_ranks: Optional[_Count] = None,
    shard_group: Optional[_Count] = None,
    across_groups: Optional[str] = None,
    offload_optimizer: Optional[_Some] = None,
    offload_ratio: Optional[float] = None,
    offload_param: Optional[_Some] = None,
    pin_memory: Optional[str] = None,
    checkpointing: Optional[str] = None,
    checkpoint_every: Optional[_Count] = None,
    checkpoint_layers: Optional[_Count] = None,
    checkpointing_above: Optional[str] = None,
    offload_activations: bool = False,
    offload_activation_layers: Optional[_Count] = None,
    config: Optional[_Path] = None,
    runtime: Optional[str] = None,
    compile: Optional[str] = None,
    code: Optional[str] = None,
    attn: Optional[str] = None,
    param_dtype: Optional[str] = None,
    optim: Optional[str] = None,
    float8: Optional[str] = None,
    optimizer_in_backward: bool = False,
    kbit: bool = False,
    tiled_mlp: bool = False,
    expandable_segments: bool = False,
) -> Why:
    """Why a run of DeepSpeed, Trainer or PyTorch died or was slow: its log beside what is predicted of it.

    Arguments win over what the log says. Raises zeroplan.Error where nothing of a run is in the log; what a
    prediction takes and neither says is in `missing`.
    """
    given = locals()
    return Why._of(_core.why(os.fspath(given.pop("log")), _words(given)))


def _describe(function: Any, options: list[list[str]]) -> None:
    lines = [f"    {name[2:].replace('-', '_')}: {help}" for name, _, help in options]
    function.__doc__ = f"{function.__doc__.rstrip()}\n\n    Arguments:\n" + "\n".join(lines) + "\n"


_describe(estimate, _core.estimate_options())
_describe(plan, _core.plan_options())
_describe(why, _core.why_options())
