"""The gate of what is rounded on purpose: how close a model stays to its own half precision, by cosines.

The exact gate comes first, before anything is rounded: what runs the texts is proven by then, and rounding is all that
these figures tell of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.verify.gate import ProbeStates, Reference
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused

LEAST_COSINE = 0.99
"""Of the mean over hidden states, of that over texts, and of logits. all-MiniLM-L6-v2, which is narrow, has 0.995 and
0.997 with linear layers in fp8; texts of random ids are harder than those that people write."""
LOWEST = 0.97
"""Of the worst text. MiniLM has 0.991."""
NOTHING = 1e-6
"""Rows this short have no direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosines:
    """To `ProbeStates.own`: means over `tokens` and over `texts` (each its mean), and the worst text."""

    tokens: float
    texts: float
    lowest: float

    @classmethod
    def of(cls, found: ProbeStates) -> "Cosines":
        """Zero where something is not finite."""
        if not torch.isfinite(found.hidden).all():
            return cls(tokens=0.0, texts=0.0, lowest=0.0)
        pooled = [
            torch.stack([text.mean(dim=0) for text in each.split(found.lengths)]) for each in (found.hidden, found.own)
        ]
        texts = cosines(*pooled)
        return cls(
            tokens=float(cosines(found.hidden, found.own).mean()), texts=float(texts.mean()), lowest=float(texts.min())
        )

    @property
    def near_enough(self) -> bool:
        return min(self.tokens, self.texts) >= LEAST_COSINE and self.lowest >= LOWEST

    def __str__(self) -> str:
        return f"cosine {self.tokens:.4f} over tokens, {self.texts:.4f} over texts, {self.lowest:.4f} at the lowest"


class CosineGate:
    """Judges a rounded encoder, then the forms that it may serve in: those by the rounded encoder as it is written."""

    def __init__(self, reference: Reference, encoder: Encoder) -> None:
        """Raises ModelRefused, with figures, where rounding takes the encoder too far from the model."""
        found = reference.among_others(encoder)
        self._reference = reference
        self._rounded = dict(zip(found.numbers, found.hidden.split(found.lengths), strict=True))
        self.cosines = _near(found, "rounded layers change it too much")

    @property
    def whole(self) -> list[int]:
        """See `Judge`, as for the others."""
        return self._reference.whole

    def uneven(self) -> list[int]:
        return self._reference.uneven()

    def one_launch_batch(self, tokens: int, sequences: int, longest: int) -> list[int]:
        return self._reference.one_launch_batch(tokens, sequences, longest)

    def check(
        self,
        encoder: Encoder,
        numbers: Sequence[int] | None = None,
        run: Callable[[RaggedBatch], Tensor] | None = None,
    ) -> None:
        """As `Reference.check`, by cosines. What is fused rounds otherwise before it is rounded to eight bits."""
        found = self._reference.among_others(encoder, numbers, run)
        rounded = torch.cat([self._rounded[each] for each in found.numbers])
        _near(replace(found, own=rounded), "it does not run as the rounded layers do")


def _near(found: ProbeStates, refusal: str) -> Cosines:
    measured = Cosines.of(found)
    if not measured.near_enough:
        raise ModelRefused(f"{refusal}: {measured}; wanted are {LEAST_COSINE}, {LEAST_COSINE} and {LOWEST}")
    return measured


def cosines(ours: Tensor, theirs: Tensor) -> Tensor:
    """Of each row of [N, H] -> [N]; 1 where both are about nothing."""
    lengths = [each.norm(dim=1) for each in (ours, theirs)]
    products = (ours * theirs).sum(dim=1) / (lengths[0] * lengths[1]).clamp(min=NOTHING**2)
    return torch.where((lengths[0] < NOTHING) & (lengths[1] < NOTHING), 1.0, products)
