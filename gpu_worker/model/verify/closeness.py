"""The gate of layers that are rounded on purpose: by cosines, how close a model stays to its own half precision.

The exact gate comes first, before anything is rounded, so these figures measure rounding alone.
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
"""Least mean cosine over hidden states, over texts, and of logits. all-MiniLM-L6-v2, which is narrow, has 0.995 and
0.997 with linear layers in fp8; texts of random ids are harder than those that people write."""
LOWEST = 0.97
"""Least cosine of the worst text. MiniLM has 0.991."""
NOTHING = 1e-6
"""Rows shorter than this have no direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosines:
    """Cosines of `hidden` to `reference` of `ProbeStates`: means over `tokens`, over `texts`, and the worst text."""

    tokens: float
    texts: float
    lowest: float

    @classmethod
    def of(cls, states: ProbeStates) -> "Cosines":
        """Measures the cosines of some probes; zeros where a hidden state is not finite."""
        if not torch.isfinite(states.hidden).all():
            return cls(tokens=0.0, texts=0.0, lowest=0.0)
        pooled = [
            torch.stack([text.mean(dim=0) for text in rows.split(states.lengths)])
            for rows in (states.hidden, states.reference)
        ]
        texts = cosines(*pooled)
        return cls(
            tokens=float(cosines(states.hidden, states.reference).mean()),
            texts=float(texts.mean()),
            lowest=float(texts.min()),
        )

    @property
    def near_enough(self) -> bool:
        """Whether all three cosines are as large as the gate wants them."""
        return min(self.tokens, self.texts) >= LEAST_COSINE and self.lowest >= LOWEST

    def __str__(self) -> str:
        return f"cosine {self.tokens:.4f} over tokens, {self.texts:.4f} over texts, {self.lowest:.4f} at the lowest"


class CosineGate:
    """Compares a rounded encoder with the reference, then its forms with the rounded encoder as it is written."""

    def __init__(self, reference: Reference, encoder: Encoder) -> None:
        """Raises ModelRefused, with figures, where rounding takes the encoder too far from the model."""
        states = reference.among_others(encoder)
        self._reference = reference
        self._rounded = dict(zip(states.numbers, states.hidden.split(states.lengths), strict=True))
        self.cosines = _near(states, "rounded layers change it too much")

    @property
    def whole(self) -> list[int]:
        """See `Gate.whole`."""
        return self._reference.whole

    def uneven(self) -> list[int]:
        """See `Gate.uneven`."""
        return self._reference.uneven()

    def one_launch_batch(self, tokens: int, sequences: int, longest: int) -> list[int]:
        """See `Gate.one_launch_batch`."""
        return self._reference.one_launch_batch(tokens, sequences, longest)

    def check(
        self,
        encoder: Encoder,
        numbers: Sequence[int] | None = None,
        run: Callable[[RaggedBatch], Tensor] | None = None,
    ) -> None:
        """See `Reference.check`. Compares by cosines: fused layers hand other numbers to the rounding to eight bits."""
        states = self._reference.among_others(encoder, numbers, run)
        rounded = torch.cat([self._rounded[number] for number in states.numbers])
        _near(replace(states, reference=rounded), "it does not run as the rounded layers do")


def _near(states: ProbeStates, refusal: str) -> Cosines:
    """Measures the cosines. Raises ModelRefused, beginning with `refusal`, where they are too small."""
    measured = Cosines.of(states)
    if not measured.near_enough:
        raise ModelRefused(f"{refusal}: {measured}; wanted are {LEAST_COSINE}, {LEAST_COSINE} and {LOWEST}")
    return measured


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Cosines [N] of the rows of two tensors [N, H]; 1 where both rows are about zero."""
    lengths = [rows.norm(dim=1) for rows in (first, second)]
    products = (first * second).sum(dim=1) / (lengths[0] * lengths[1]).clamp(min=NOTHING**2)
    return torch.where((lengths[0] < NOTHING) & (lengths[1] < NOTHING), 1.0, products)
