"""How near rows are to those of the model's own code, by two tolerances.

Exact: another way to compute the same, packed, in pieces or by graphs, is off by rounding alone. Rounded: layers that
are rounded on purpose stay close by their cosines; an exact comparison comes first, so these measure rounding alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.errors import ModelRefused

TOLERANCE = 2e-5
"""Largest error of a float32 hidden state, relative to the number, or absolute where that is smaller than 1."""
HALF_RATIO = 1.5
"""Largest error of hidden states in half precision, relative to the error of the model's own run in half precision."""
LOGIT_TOLERANCE = 1e-4
"""Largest error of float32 logits, in root mean square, relative to them, or absolute where they are smaller than 1."""
LOGIT_HALF_RATIO = 3.0
"""Largest error of logits in half precision, relative to the error of the model's own run in half precision.

It is generous, since few numbers are compared here and the encoder was compared before. A wrong row errs by much more.
"""
LEAST_COSINE = 0.99
"""Least mean cosine over hidden states, over texts, and of logits. all-MiniLM-L6-v2, which is narrow, has 0.997
over texts; texts of random ids are harder than those that people write."""
LOWEST = 0.97
"""Least cosine of the worst text. MiniLM has 0.99."""
NOTHING = 1e-6
"""Rows shorter than this have no direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Rows [N, W] float32 that the model's own code gives for texts that it runs one at a time.

    `exact` are computed by float32 weights, `rows` in the model's number format. `lengths` are the tokens of each text,
    `noise` the largest difference between the model's own runs of a text.
    """

    exact: Tensor
    rows: Tensor
    lengths: Sequence[int] = ()
    noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether rows are `near` enough to what is expected, and how near, in words; `wanted` is how near they were to be,
    where `figures` do not say it."""

    near: bool
    figures: str
    wanted: str = ""

    def check(self, refusal: str) -> None:
        """Raises ModelRefused, in these words and with the figures, unless rows are near enough."""
        if not self.near:
            raise ModelRefused(f"{refusal}: {self.figures}{self.wanted}")


def exact_states(hidden: Tensor, expected: Expected, dtype: torch.dtype) -> Verdict:
    """Compares hidden states [T, H] of an encoder of this number format.

    In float32, every number must be within 2e-5 x max(1, |exact|), or within three times the noise. In half precision,
    the root mean square error may be 1.5 times that of the model's own run.
    """
    if not torch.isfinite(hidden).all():
        return Verdict(near=False, figures="its hidden states are not finite")
    if dtype == torch.float32:
        error = (hidden - expected.exact).abs()
        allowed = torch.clamp(TOLERANCE * expected.exact.abs().clamp(min=1), min=3 * expected.noise)
        figures = f"hidden states differ by {float(error.max()):.2g}, its own padding noise is {expected.noise:.2g}"
        return Verdict(near=bool((error <= allowed).all()), figures=figures)
    distance, of_model = size_of(hidden - expected.exact), size_of(expected.rows - expected.exact)
    figures = f"{distance:.2g} away from float32, its own {str(dtype)[6:]} run is {of_model:.2g} away"
    return Verdict(near=distance <= HALF_RATIO * of_model, figures=figures)


def exact_logits(logits: Tensor, expected: Expected, dtype: torch.dtype) -> Verdict:
    """Compares logits [S or T, labels] in root mean square, see `LOGIT_TOLERANCE` and `LOGIT_HALF_RATIO`."""
    distance = logit_error(logits, expected)
    if distance == float("inf"):
        wanted = list(expected.exact.shape)
        return Verdict(near=False, figures=f"its head gives {list(logits.shape)} finite numbers, wanted are {wanted}")
    of_model, size = size_of(expected.rows - expected.exact), size_of(expected.exact)
    half = LOGIT_HALF_RATIO * of_model + size / 256
    allowed = LOGIT_TOLERANCE * max(1.0, size) if dtype == torch.float32 else half
    figures = f"its head's logits differ by {distance:.2g}, allowed is {allowed:.2g}"
    return Verdict(near=distance <= allowed, figures=figures)


def rounded_states(hidden: Tensor, expected: Expected) -> Verdict:
    """Compares hidden states [T, H] of rounded layers: the mean cosines over tokens and over texts, and the least of
    a text."""
    compared = hidden, expected.rows
    means = [torch.stack([text.mean(dim=0) for text in rows.split(list(expected.lengths))]) for rows in compared]
    of_texts = cosines(*means)
    tokens, texts, lowest = float(cosines(*compared).mean()), float(of_texts.mean()), float(of_texts.min())
    return Verdict(
        near=tokens >= LEAST_COSINE and texts >= LEAST_COSINE and lowest >= LOWEST,  # NaN is not
        figures=f"cosine {tokens:.4f} over tokens, {texts:.4f} over texts, {lowest:.4f} at the lowest",
        wanted=f", wanted are {LEAST_COSINE}, {LEAST_COSINE} and {LOWEST}",
    )


def rounded_logits(logits: Tensor, expected: Expected) -> Verdict:
    """Compares logits [S or T, labels] of rounded layers: one cosine of all of them."""
    cosine = float(torch.cosine_similarity(logits.float().flatten(), expected.rows.flatten(), dim=0))
    wanted = f", wanted is {LEAST_COSINE}"
    return Verdict(near=cosine >= LEAST_COSINE, figures=f"cosine {cosine:.4f}", wanted=wanted)


def logit_error(logits: Tensor, expected: Expected) -> float:
    """Computes the root mean square error of logits; infinite where their shape is wrong or one is not finite."""
    if logits.shape != expected.exact.shape or not torch.isfinite(logits).all():
        return float("inf")
    return size_of(logits.float() - expected.exact)


def size_of(numbers: Tensor) -> float:
    """Computes the root mean square of numbers."""
    return float(numbers.pow(2).mean().sqrt())


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Cosines [N] of the rows of two tensors [N, H]; 1 where both rows are about zero."""
    lengths = [rows.norm(dim=1) for rows in (first, second)]
    products = (first * second).sum(dim=1) / (lengths[0] * lengths[1]).clamp(min=NOTHING**2)
    return torch.where((lengths[0] < NOTHING) & (lengths[1] < NOTHING), 1.0, products)
