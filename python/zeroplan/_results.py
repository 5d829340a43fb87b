"""The results of estimate and plan: the command line's JSON (docs/metrics.md), typed. Names are the
JSON's. Bytes are whole numbers, times are seconds; an unknown value is None."""

from __future__ import annotations

import copy
import dataclasses
import functools
import html
import json
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from ._choice import ChoiceRecord
from ._pictures import Drawn
from ._runs import Data, Interruptions, Training

if TYPE_CHECKING:
    import os

    import pandas

_Json = dict


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _read(kind: Any, value: Any) -> Any:
    """Converts `value` of the JSON to `kind`: for a dataclass the keys that are its fields; a field with a default
    may be missing."""
    if value is None:
        return None
    if typing.get_origin(kind) is Union:  # Optional
        kind = typing.get_args(kind)[0]
    if dataclasses.is_dataclass(kind):
        types = _types(kind).items()
        return kind(**{name: _read(type_, value[name]) for name, type_ in types if name in value})
    if typing.get_origin(kind) is tuple:
        return tuple(_read(typing.get_args(kind)[0], one) for one in value)
    return value


@dataclass(frozen=True)
class GpuBytes:
    """One GPU at the instant when most is live, by class (docs/memory.md). They sum to the total."""

    params: int
    grads: int
    optimizer: int
    activations: int
    buffers: int
    runtime: int
    total: int
    capacity: Optional[int] = None
    """The GPU's, in estimates; a plan has it in `cluster`."""
    reserve: Optional[int] = None
    """Bytes of the capacity that stay free."""


@dataclass(frozen=True)
class HostBytes:
    """The bytes of one host, all its ranks together."""

    pinned: int
    pageable: int
    total: int
    capacity: Optional[int] = None
    reserve: Optional[int] = None


@dataclass(frozen=True)
class StepSeconds:
    """One optimizer step by cause. They sum to the total."""

    compute: Optional[float]
    exposed_comm: Optional[float]
    exposed_offload: Optional[float]
    optimizer: Optional[float]
    total: Optional[float]


@dataclass(frozen=True)
class AxisBytes:
    """comm_bytes_per_step by receiver: GPUs of the own shard group, GPUs of others, all at once."""

    within: int
    across: int
    all: int


@dataclass(frozen=True)
class Choice(ChoiceRecord):
    """How a model is trained."""

    def __str__(self) -> str:
        stage = f"stage {self.stage}"
        if self.across_groups is not None:
            stage += f" in groups of {self.shard_group}"
        parts = [stage]
        if self.across_groups in ("optimizer", "gradients"):
            shared = "optimizer" if self.across_groups == "optimizer" else "gradients and optimizer"
            parts.append(f"{shared} over all")
        if self.offload_optimizer != "none":
            share = f" ({self.offload_ratio:.0%})" if self.offload_ratio < 1 else ""
            parts.append(f"optimizer on {self.offload_optimizer}{share}")
        if self.offload_param != "none":
            parts.append(f"parameters on {self.offload_param}")
        if not self.pin_memory:
            parts.append("pageable")
        if self.sequence_ranks > 1:
            parts.append(f"sequences over {self.sequence_ranks} GPUs")
        layers = f" of {self.checkpoint_layers} layers" if self.checkpoint_layers else ""
        if self.checkpointing == "products":
            parts.append(f"products{layers} computed again")
        elif self.checkpoint_every > 1:
            parts.append(f"recompute{layers} by {self.checkpoint_every} layers")
        elif self.checkpointing != "none":
            parts.append(f"{self.checkpointing} recompute{layers}")
        if self.checkpointing_above != "none":
            parts.append(f"{self.checkpointing_above} above")
        if self.offload_activations != "none":
            layers = self.offload_activation_layers
            parts.append(f"activations{f' of {layers} layers' if layers else ''} on {self.offload_activations}")
        if self.master_weights != "fp32":
            parts.append(f"{self.master_weights.replace('16bit', '16-bit')} masters")
        if self.optimizer_states != "fp32":
            parts.append(f"{self.optimizer_states.replace('8bit', '8-bit')} states")
        if self.matmul_dtype == "fp8":
            parts.append("FP8 products" + (" by blocks" if self.fp8_recipe == "blocks" else ""))
        return ", ".join(parts)


@dataclass(frozen=True)
class Settings:
    """Sizes in elements, zeroplan's own choice unless a config sets them; and whether communication overlaps."""

    reduce_bucket: Optional[int]
    prefetch_bucket: Optional[int]
    persistence_threshold: int
    reuse_distance: int
    overlap: bool
    shard_group: int
    """GPUs that share the states that the stage shards, 1 at stage 0."""
    across_groups: Optional[str]
    """States that shard groups shard among each other too: "replicate" (none), "optimizer", "gradients"; None: there
    is one group."""


@dataclass(frozen=True)
class EstimatedChoice(Choice):
    settings: Settings
    gpu_bytes: GpuBytes
    host_bytes: HostBytes
    nvme_bytes: int
    comm_bytes_per_step: int
    pcie_bytes_per_step: int
    step_seconds: StepSeconds
    tokens_per_second: Optional[float]
    mfu: Optional[float]
    training: Optional[Training]
    fits: bool
    why_not: Optional[str]
    comm_bytes_by_axis: Optional[AxisBytes] = None
    """Set if there are several shard groups."""
    interruptions: Optional[Interruptions] = None

    __str__ = Choice.__str__

    @property
    def choice(self) -> Choice:
        """The record alone, to compare with a plan's."""
        return Choice(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Choice)})


@dataclass(frozen=True)
class Model:
    name: str
    params: int
    layers: int
    hidden: int
    heads: int
    vocab: int
    seq_len: int


@dataclass(frozen=True)
class Cluster:
    hw: str
    gpus: int
    gpus_per_node: int


@dataclass(frozen=True)
class Predicted:
    gpu_bytes: GpuBytes
    rank_arena_bytes: dict[str, int]
    host_bytes: HostBytes
    nvme_bytes: int
    comm_bytes_per_step: int
    pcie_bytes_per_step: int
    step_seconds: StepSeconds
    tokens_per_second: Optional[float]
    mfu: Optional[float]
    comm_bytes_by_axis: Optional[AxisBytes] = None
    """Set if there are several shard groups."""


@dataclass(frozen=True)
class Search:
    objective: str
    candidates: int
    cut_by_memory: int
    cut_by_score: int
    judged: int
    left: int
    lowered: int
    seconds: float


@dataclass(frozen=True)
class Stage:
    """The best choice of one stage, or the one closest to fitting. Values that need a choice that fits are None
    otherwise; `why_not` is None if it fits."""

    stage: int
    fits: bool
    choice: Choice
    gpu_bytes: GpuBytes
    host_bytes: HostBytes
    why_not: Optional[str] = None
    proven: Optional[bool] = None
    step_seconds: Optional[StepSeconds] = None
    tokens_per_second: Optional[float] = None
    lost_seconds: Optional[StepSeconds] = None


@dataclass(frozen=True)
class Change:
    """The difference to the request; None (or no stages): no difference."""

    gpu_memory_bytes: Optional[int] = None
    global_batch: Optional[int] = None
    bandwidth_scale: Optional[float] = None
    stages: tuple[int, ...] = ()
    gpus: Optional[int] = None


@dataclass(frozen=True)
class Claim:
    """The answer if something were different. `answer` is None if nothing fits; for the kind "chosen" it is the plan's
    own. `holds`: the range, both ends included, in which an answer of its kind holds, or one of `or_else` (bytes,
    sequences, or bytes a second)."""

    kind: str
    change: Change
    answer: Optional[Choice]
    tokens_per_second: Optional[float]
    or_else: tuple[Choice, ...]
    holds: Optional[tuple[float, float]]
    gap: float


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f}"


def _milliseconds(seconds: Optional[float]) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"


def _table(caption: str, head: list[str], rows: list[list[str]], chosen: Optional[int] = None) -> str:
    def cells(tag: str, texts: list[str], weight: str = "") -> str:
        # The first and the last are read, the others compared.
        ends = (0, len(texts) - 1)
        return "".join(
            f'<{tag} style="text-align:{"left" if i in ends else "right"}{weight}">{html.escape(text)}</{tag}>'
            for i, text in enumerate(texts)
        )

    body = "".join(
        "<tr>" + cells("td", row, ";font-weight:bold" if i == chosen else "") + "</tr>"
        for i, row in enumerate(rows)
    )
    return (
        f'<table><caption style="text-align:left">{html.escape(caption)}</caption>'
        f"<thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
    )


def _paragraphs(texts: list[str]) -> str:
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)


def _flat(source: _Json, prefix: str = "") -> _Json:
    """Flattens objects: joins their keys by dots, as `--format csv` does."""
    flat = {}
    for key, value in source.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _frame(rows: list[_Json]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise ImportError(
            "to_pandas: pandas is not installed; python3 -m pip install pandas, or use to_dict()"
        ) from None
    return pandas.DataFrame([_flat(row) for row in rows])


@dataclass(frozen=True)
class Estimate(Drawn):
    """Every choice that the options leave, whether it fits or not (schema zeroplan.estimate/1)."""

    model: Model
    cluster: Cluster
    choices: tuple[EstimatedChoice, ...]
    """By stage, offloads, recompute."""
    assumed: tuple[str, ...]
    """Defaults that the request did not set: "--micro-batch 1"."""
    notes: tuple[str, ...]
    data: Optional[Data]
    """The data of data=."""
    _json: str = dataclasses.field(repr=False)

    @classmethod
    def _of(cls, result: dict[str, Any], call: str) -> Estimate:
        source = json.loads(result["json"])
        for choice in source["choices"]:
            choice.update(choice["choice"])
        estimate: Estimate = _read(cls, {"data": None, **source, **result, "_json": result["json"]})
        estimate._draws(result, call)
        return estimate

    def to_json(self) -> str:
        """The output of `zeroplan estimate --format json`."""
        return self._json

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self._json)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each choice; columns as `zeroplan estimate --format csv` has them."""
        asked = {
            "model": self.model.name,
            "params": self.model.params,
            "seq_len": self.model.seq_len,
            **dataclasses.asdict(self.cluster),
        }
        unknown = {field.name: None for field in dataclasses.fields(Training)}
        choices = self.to_dict()["choices"]
        for choice in choices:
            choice["training"] = choice["training"] or unknown
            # Its settings have columns once, the newer ones at the end.
            record = choice.pop("choice")
            known = {**asked, **choice, **choice["settings"]}
            choice.update({name: value for name, value in record.items() if name not in known})
        return _frame([{**asked, **choice} for choice in choices])

    def fitting(self) -> list[EstimatedChoice]:
        """The choices that fit, the fastest first."""
        return sorted(
            (choice for choice in self.choices if choice.fits),
            key=lambda choice: -(choice.tokens_per_second or 0),
        )

    def _repr_html_(self) -> str:
        rows = [
            [
                str(choice),
                _gigabytes(choice.gpu_bytes.total),
                _gigabytes(choice.host_bytes.total),
                _milliseconds(choice.step_seconds.total),
                "" if choice.tokens_per_second is None else f"{choice.tokens_per_second:.0f}",
                "yes" if choice.fits else choice.why_not or "no",
            ]
            for choice in self.choices
        ]
        table = _table(
            f"{self.model.name}, {self.model.params / 1e9:.2f}B parameters, "
            f"{self.cluster.gpus} GPUs ({self.cluster.hw})",
            ["choice", "GPU GB", "host GB", "step ms", "tokens/s", "fits"],
            rows,
        )
        return table + _paragraphs([str(self.data)] if self.data else []) + self._pictures_html()


@dataclass(frozen=True)
class Plan(Drawn):
    """The best choice, its reasons, and the conditions under which it changes (schema zeroplan.plan/1)."""

    choice: Choice
    predicted: Predicted
    gap: float
    """0: no other choice is better by more than 0.5 %; else how much better one could be at most."""
    stages: tuple[Stage, ...]
    claims: tuple[Claim, ...]
    """The other answers in `advice`, each found by a search."""
    advice: tuple[str, ...]
    """Why, in paragraphs."""
    assumed: tuple[str, ...]
    notes: tuple[str, ...]
    search: Search
    seq_len: int
    model: dict[str, Any]
    cluster: dict[str, Any]
    lower: dict[str, Any]
    config: dict[str, Any]
    """The choice as a DeepSpeed config."""
    fingerprint: str
    build: dict[str, Any]
    """The build that made the plan: commit, compiler, the versions of CUDA and its libraries."""
    origin: Optional[dict[str, Any]]
    """The origin of the run that a plan carries: model folder, profile's file, config."""
    checkpoint: Optional[dict[str, Any]]
    """Bytes of a checkpoint and, if the disk is known, seconds of a save."""
    interruptions: Optional[Interruptions]
    training: Optional[Training]
    data: Optional[Data]
    """The data of data=."""
    largest: str
    """For largest=: the model found, and why nothing larger fits; else empty."""
    _json: str = dataclasses.field(repr=False)

    @classmethod
    def _of(cls, result: dict[str, Any], call: str) -> Plan:
        source = json.loads(result["json"])
        for claim in source["claims"]:
            claim["tokens_per_second"] = claim["answer"] and claim["answer"]["tokens_per_second"]
        optional = {"origin": None, "checkpoint": None, "interruptions": None, "data": None}
        plan: Plan = _read(cls, {**optional, **source, **result, "_json": result["json"]})
        plan._draws(result, call)
        return plan

    @property
    def tokens_per_second(self) -> Optional[float]:
        return self.predicted.tokens_per_second

    @property
    def step_seconds(self) -> StepSeconds:
        return self.predicted.step_seconds

    @property
    def gpu_bytes(self) -> GpuBytes:
        return self.predicted.gpu_bytes

    @property
    def flips(self) -> list[Claim]:
        """The claims about the values of memory, batch or bandwidth at which the answer changes."""
        return [claim for claim in self.claims if claim.kind in ("memory", "batch", "crossover")]

    def to_json(self) -> str:
        """The output of `zeroplan plan --format json`."""
        return self._json

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self._json)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each stage, the best of it; columns are the JSON's keys joined by dots."""
        return _frame(self.to_dict()["stages"])

    def deepspeed_config(self) -> dict[str, Any]:
        """A copy of `config`, to change and to give to deepspeed.initialize."""
        return copy.deepcopy(self.config)

    def save(self, file: Union[str, os.PathLike[str]]) -> None:
        """Writes the plan for `zeroplan train --plan` and `zeroplan explain`."""
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(self._json)

    def __str__(self) -> str:
        return "\n".join(self.advice)

    def _repr_html_(self) -> str:
        rows = [
            [
                str(stage.choice),
                str(stage.choice.micro_batch),
                str(stage.choice.grad_accum),
                _gigabytes(stage.gpu_bytes.total),
                _gigabytes(stage.host_bytes.total),
                "" if stage.step_seconds is None else _milliseconds(stage.step_seconds.total),
                "" if stage.tokens_per_second is None else f"{stage.tokens_per_second:.0f}",
                "yes" if stage.fits else stage.why_not or "no",
            ]
            for stage in self.stages
        ]
        chosen = next((i for i, s in enumerate(self.stages) if s.choice == self.choice), None)
        table = _table(
            f"{self.model['name']} on {self.cluster['gpus']} x {self.cluster['gpu']}: {self.choice}",
            ["best of each stage", "micro-batch", "micro-steps", "GPU GB", "host GB", "step ms",
             "tokens/s", "fits"],
            rows,
            chosen,
        )
        advice = _paragraphs([*self.advice, *([str(self.data)] if self.data else [])])
        return table + advice + self._pictures_html()


@dataclass(frozen=True)
class Why:
    """A run's log compared with its prediction (schema zeroplan.why/1, docs/why.md)."""

    failure: Optional[dict[str, Any]]
    """The failure that ended the run: kind, phase, line, rank, the allocator's numbers; None: the log reports none."""
    findings: tuple[str, ...]
    changes: tuple[dict[str, Any], ...]
    """Changes after each of which the run fits, the fastest first."""
    prediction: Optional[dict[str, Any]]
    missing: tuple[dict[str, Any], ...]
    """Values that neither the log nor the arguments give."""
    incomplete: str
    """Why there is no prediction; "": there is one."""
    _text: str = dataclasses.field(repr=False)
    _json: str = dataclasses.field(repr=False)

    @classmethod
    def _of(cls, result: dict[str, str]) -> Why:
        source = json.loads(result["json"])
        return cls(
            failure=source["log"]["failure"],
            findings=tuple(source["findings"]),
            changes=tuple(source["changes"]),
            prediction=source["prediction"],
            missing=tuple(source["missing"]),
            incomplete=result["incomplete"],
            _text=result["text"],
            _json=result["json"],
        )

    def __str__(self) -> str:
        """The output of `zeroplan why`."""
        return self._text

    def to_json(self) -> str:
        """The output of `zeroplan why --format json`."""
        return self._json

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self._json)
