"""The gate, as far as the choice of an encoder's form needs it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.ragged.batch import RaggedBatch

Run = Callable[[RaggedBatch], Tensor]
"""Computes the last hidden states [T, H] of a batch."""


class Gate(Protocol):
    """Compares forms with the model itself. Batches are given as numbers of the gate's texts."""

    @property
    def whole(self) -> list[int]:
        """Numbers of the texts without tails."""

    def uneven(self) -> list[int]:
        """Numbers of a batch that attention takes two launches for, if a text is long enough."""

    def check(self, encoder: Encoder, numbers: Sequence[int] | None = None, run: Run | None = None) -> None:
        """Raises where `run`, or the encoder itself, does not give the model's own hidden states for these texts."""

    def one_launch_batch(self, tokens: int, sequences: int, longest: int) -> list[int]:
        """Numbers of as many texts as fit into such a batch and are attended to in one launch."""
