"""A run's data, cost and interruptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Training:
    """A whole run, requested by tokens= or data=. Tokens of data are positions, including padding."""

    tokens: int
    steps: int
    seconds: float
    gpu_hours: float
    price: Optional[float]
    gpu_kwh: Optional[float]


@dataclass(frozen=True)
class Interruptions:
    """The interval between saves, and the run with interruptions (docs/checkpoints.md), requested by interruptions=.

    None: unknown, not requested, or beyond any number.
    """

    rate_per_hour: float
    interval_steps: Optional[int]
    interval_seconds: Optional[float]
    save_seconds: Optional[float]
    """The time that steps wait for a save; it is complete after whole_save_seconds."""
    whole_save_seconds: Optional[float]
    restart_seconds: Optional[float]
    """From an interruption until steps run again."""
    lost_share: Optional[float]
    expected_seconds: Optional[float]
    expected_gpu_hours: Optional[float]
    expected_price: Optional[float]
    notice_needs_seconds: Optional[float]
    """From a notice until all is saved, at most."""
    fits_notice: Optional[bool]


@dataclass(frozen=True)
class DocumentTokens:
    """Tokens of a document. p95: at least 95 % have no more."""

    least: int
    median: int
    mean: float
    p95: int
    p99: int
    longest: int


@dataclass(frozen=True)
class EpochSequences:
    """An epoch as sequences of the run's length, and the share of their positions that is padding."""

    sequences: int
    padding: float


@dataclass(frozen=True)
class SequenceCuts:
    """The documents and tokens that sequences of `seq_len` cut: shares of all documents and of all tokens."""

    seq_len: int
    cut_documents: float
    cut_tokens: float


@dataclass(frozen=True)
class MicroBatchTokens:
    """The tokens of a GPU's micro-batch. `planned` and `largest` differ if another runtime pads only to the longest
    document."""

    planned: int
    largest: int
    mean: float


@dataclass(frozen=True)
class Data:
    """The data of data= in the answer's batches, as `zeroplan train` reads it (docs/data.md)."""

    documents: int
    tokens: int
    counted_tokens: int
    """Tokens that count in the loss."""
    document_tokens: DocumentTokens
    seq_len: int
    packing: str
    trained_documents: Optional[int]
    """Documents in an epoch; None: packing is "stream"."""
    held_back: int
    """Held back for validation: documents, or sequences of a "stream"."""
    longer_documents: int
    """Documents longer than a sequence."""
    left_out_tokens: int
    """Tokens of longer documents left out; 0: they go on in pieces."""
    uncounted_documents: int
    single_token_documents: int
    epoch: EpochSequences
    packed: Optional[EpochSequences]
    one_a_sequence: Optional[EpochSequences]
    cuts: Optional[SequenceCuts]
    """At seq_len; None: packing is "stream"."""
    proposal: Optional[SequenceCuts]
    """The least multiple of 128 that cuts at most 1 % of the documents."""
    sequences_per_step: int
    epochs: float
    steps: int
    micro_batch_tokens: MicroBatchTokens

    def __str__(self) -> str:
        def several(count: float, thing: str) -> str:
            return f"{count:.12g} {thing}{'' if count == 1 else 's'}"

        lengths = self.document_tokens
        return (
            f"Data: {several(self.documents, 'document')}, {several(self.tokens, 'token')}, of which "
            f"{self.counted_tokens} count in the loss; {lengths.median} of a document at the median, {lengths.p99} at "
            f"99 %, {lengths.longest} at most. Packing {self.packing}: {several(self.epoch.sequences, 'sequence')} of "
            f"{self.seq_len} an epoch, {self.epoch.padding:.1%} padding; {several(self.steps, 'step')} of "
            f"{self.sequences_per_step} for {several(self.epochs, 'epoch')}."
        )
