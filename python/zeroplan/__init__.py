"""Plans ZeRO training of transformers: what fits, how fast, and what is best.

    import zeroplan
    plan = zeroplan.plan(model="gpt2-xl", gpus=8, hw="dgx-a100-40gb", gpu_memory="24GB")
    print(plan.choice, plan.tokens_per_second)
    zeroplan.estimate(params="10B", gpus=16, hw="dgx-a100-40gb").to_pandas()

Arguments are the options of `zeroplan estimate` and `zeroplan plan`, with underscores; help() of the
functions lists them all. docs/python.md documents the library."""

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
from ._options import _Path, _Some, _takes
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

def _text(name: str, value: Any) -> str:
    """The value as text in the form of an option."""
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
            # Each path is an option of its own, because paths may contain commas.
            each = given[name] = list(value)
        words += [(name.replace("_", "-"), _text(name, one)) for one in each]
    return words


def _call(name: str, given: dict[str, Any]) -> str:
    """The call in Python, for the end of the page."""
    arguments = (f"{key}={value!r}" for key, value in given.items() if value is not None and value is not False)
    return f"zeroplan.{name}({', '.join(arguments)})"


@_takes(_core.estimate_options())
def estimate(**arguments: Any) -> Estimate:
    """Memory and step time of every ZeRO stage and offload choice, whether it fits or not.

    Raises zeroplan.Error with the command line's message.
    """
    return Estimate._of(_core.estimate(_words(arguments)), _call("estimate", arguments))


@_takes(_core.plan_options())
def plan(**arguments: Any) -> Plan:
    """The best stage, offload, recompute and batch, and why the others lose.

    Other Python threads run meanwhile. Raises zeroplan.NothingFits if nothing fits; its text names the
    smallest change that would. Raises zeroplan.Error for other errors. Both have the command line's message.
    """
    return Plan._of(_core.plan(_words(arguments)), _call("plan", arguments))


def machines(
    hw: Union[_Path, Iterable[str]] = "any", gpus: Optional[_Some] = None, **arguments: Any
) -> Machines:
    """The best plan of each of several machines, and the time, cost and energy of a run there.

    `hw`: names, or "any" for all built-in ones. Further arguments are those of plan(); `objective` is
    "time", "cost" or "energy". Other Python threads run meanwhile. Raises zeroplan.Error with the command
    line's message. Raises nothing if nothing fits: see `best`.
    """
    unknown = arguments.keys() - inspect.signature(plan).parameters.keys()
    if unknown:
        raise TypeError(f"machines() got an unexpected keyword argument '{min(unknown)}'; those of plan() are known")
    given = {"hw": hw, "gpus": gpus, **arguments}
    return Machines._of(_core.machines(_words(given)), _call("machines", given))


@_takes(_core.why_options(), log=_Path)
def why(log: _Path, **arguments: Any) -> Why:
    """Why a run of DeepSpeed, Trainer or PyTorch died or was slow: its log compared with its prediction.

    Arguments override the log. Raises zeroplan.Error if the log has nothing of a run; `missing` lists the values
    that a prediction needs and neither gives.
    """
    return Why._of(_core.why(os.fspath(log), _words(arguments)))
