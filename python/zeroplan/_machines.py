"""The result of machines(): the command line's JSON (docs/metrics.md), typed."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from ._pictures import Drawn
from ._results import Choice, _frame, _read, _table
from ._runs import Data

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Machine:
    """The best plan of one machine, and the time and cost of a run there."""

    hw: str
    gpus: int
    fits: bool
    why_not: Optional[str]
    """The resource that is short if nothing fits, or why the machine cannot be planned for."""
    gap: float
    """0: no other choice is better by more than 0.5 %; else how much better one could be at most."""
    margin: Optional[float]
    """The largest error of a step's time against measured runs, as a share; None: unknown."""
    guessed: bool
    """Whether times depend on figures that are neither measured nor from a datasheet."""
    seconds: Optional[float]
    """The run's; with interruptions= the expected ones, unless `steps_alone`."""
    steps_alone: bool
    gpu_hours: Optional[float]
    price: Optional[float]
    """The run's, on demand, or with interruptions= on spot machines; None: unknown."""
    spot_price: Optional[float]
    gpu_kwh: Optional[float]
    gpu_hour_price: Optional[dict[str, Any]]
    """amount, currency, date and source of a GPU's price for an hour."""
    rented_gpus: Optional[int]
    """GPUs to pay for: whole nodes if they are rented so."""
    in_time: bool
    in_budget: bool
    unbeaten: bool
    """Whether no other machine is as fast and as cheap, and better in one of the two."""
    tokens_per_second: Optional[float]
    choice: Optional[Choice]
    data: Optional[Data] = None
    """The data of data= in the plan's batches, as this machine packs it."""


@dataclass(frozen=True)
class Machines(Drawn):
    """The best plan of each machine, the best machine first (schema zeroplan.machines/1)."""

    machines: tuple[Machine, ...]
    model: dict[str, Any]
    tokens: Optional[int]
    """Tokens of the run by which they are compared; None: it lasts epochs of data."""
    objective: str
    currency: Optional[str]
    assumed: tuple[str, ...]
    notes: tuple[str, ...]
    _json: str = dataclasses.field(repr=False)

    @classmethod
    def _of(cls, result: dict[str, Any], call: str) -> Machines:
        source = json.loads(result["json"])
        for machine in source["machines"]:
            machine["tokens_per_second"] = machine["choice"] and machine["choice"]["tokens_per_second"]
        comparison: Machines = _read(cls, {**source, "_json": result["json"]})
        comparison._draws(result, call)
        return comparison

    @property
    def best(self) -> Optional[Machine]:
        """The best within deadline and budget; None: there is none."""
        return next((m for m in self.machines if m.fits and m.in_time and m.in_budget), None)

    @property
    def unbeaten(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.unbeaten]

    def to_json(self) -> str:
        """The output of `zeroplan plan --format json` for machines."""
        return self._json

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self._json)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each machine; columns are the JSON's keys joined by dots."""
        return _frame(self.to_dict()["machines"])

    def _repr_html_(self) -> str:
        def number(value: Optional[float]) -> str:
            return "" if value is None else f"{value:.3g}"

        rows = [
            [
                f"{machine.gpus} x {machine.hw}",
                str(machine.choice or ""),
                number(machine.tokens_per_second),
                "" if machine.seconds is None else number(machine.seconds / 3600),
                number(machine.price),
                number(machine.gpu_kwh),
                "yes" if machine.unbeaten else "",
                "" if machine.fits else machine.why_not or "no",
            ]
            for machine in self.machines
        ]
        chosen = next((i for i, machine in enumerate(self.machines) if machine is self.best), None)
        return _table(
            f"{self.model['name']}, "
            + ("data" if self.tokens is None else f"{self.tokens:.3g} tokens")
            + f", by {self.objective}",
            ["machine", "best plan", "tokens/s", "hours", self.currency or "price", "kWh", "unbeaten", "why not"],
            rows,
            chosen,
        ) + self._pictures_html()
