"""The gate of layers that are rounded on purpose: by cosines, how close a model stays to its own half precision.

The exact gate comes first, before anything is rounded, so these figures measure rounding alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.verify.gate import ProbeStates, Reference
from shared.errors import ModelRefused

LEAST_COSINE = 0.99
"""Least mean cosine over hidden states, over texts, and of logits. all-MiniLM-L6-v2, which is narrow, has 0.997
over texts; texts of random ids are harder than those that people write."""
LOWEST = 0.97
"""Least cosine of the worst text. MiniLM has 0.99."""
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


def check_close(reference: Reference, encoder: Encoder) -> Cosines:
    """Compares a rounded encoder with the reference. Raises ModelRefused where they are too far apart."""
    measured = Cosines.of(reference.among_others(encoder))
    if not measured.near_enough:
        wanted = f"wanted are {LEAST_COSINE}, {LEAST_COSINE} and {LOWEST}"
        raise ModelRefused(f"rounded layers change it too much: {measured}; {wanted}")
    return measured


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Cosines [N] of the rows of two tensors [N, H]; 1 where both rows are about zero."""
    lengths = [rows.norm(dim=1) for rows in (first, second)]
    products = (first * second).sum(dim=1) / (lengths[0] * lengths[1]).clamp(min=NOTHING**2)
    return torch.where((lengths[0] < NOTHING) & (lengths[1] < NOTHING), 1.0, products)
