"""The gate of every load: a model is served only if its packed run equals its own attention, one text at a time.

Models that accept a foreign attention by name and then ignore part of it (DeBERTa mixes sequences) would otherwise
be served wrongly in silence. The reference is the model's own eager attention, not ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.models import relative
from gpu_worker.models.attention import NAME
from gpu_worker.models.recipe import ModelRefused
from gpu_worker.models.trunk import Trunk
from gpu_worker.ragged_batch import Ids, RaggedBatch

TOLERANCE = 2e-5
HALF_RATIO = 1.5
LONGEST_PROBE = 2048


class Reference:
    """Hidden states of a few random texts by the model's own attention, taken before anything is changed."""

    def __init__(self, model: Any, positions: int, unattended: bool = False) -> None:
        """`unattended`: whether the model is to run texts with a tail that nobody attends to."""
        own_packed = relative.serves(model.config)  # one of ours, since transformers has no way in
        if not own_packed and not getattr(model, "_supports_attention_backend", False):
            raise ModelRefused(f"{type(model).__name__} takes no foreign attention, so it cannot run packed")
        self.texts = _random_texts(model.config, positions)
        self.tails = [0] * len(self.texts)
        if unattended:
            self.texts += [self.texts[-1], self.texts[-1][:12]]
            self.tails += [6, 1]
        self.layers = int(model.config.num_hidden_layers)
        if not own_packed:
            model.set_attn_implementation("eager")
        with torch.inference_mode():
            self.own = self._one_by_one(model)
            with in_float32(model):
                self.exact = self._one_by_one(model)
                self.padding_noise = self._padding_noise(model)
        if own_packed:
            relative.install(model)
        else:
            model.set_attn_implementation(NAME)

    def check(self, trunk: Trunk) -> None:
        """Raises ModelRefused, with figures, where the packed run does not equal the reference."""
        batch = RaggedBatch.pack(self.texts, trunk.device, trunk.first_position, None, self.tails)
        with torch.inference_mode():
            hidden, calls = trunk.run(batch)
        if calls != self.layers:
            raise ModelRefused(
                f"{type(trunk.model).__name__} attended {calls} times through the packed attention, "
                f"its config says {self.layers} layers"
            )
        verdict = compare(hidden.float(), self.exact, self.own, self.padding_noise, trunk.dtype)
        if verdict:
            raise ModelRefused(f"{type(trunk.model).__name__} does not run packed as it runs alone: {verdict}")

    def _one_by_one(self, model: nn.Module) -> Tensor:
        runs = [self._run(model, [text], [tail])[0] for text, tail in zip(self.texts, self.tails, strict=True)]
        return torch.cat(runs).float()

    def _run(self, model: nn.Module, texts: list[Ids], tails: list[int]) -> Tensor:
        """Hidden states [B, L, H] of texts padded to the longest, by the model as it stands; it counts positions."""
        device = next(model.parameters()).device
        longest = max(map(len, texts))
        ids = np.zeros((len(texts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, (text, tail) in enumerate(zip(texts, tails, strict=True)):
            ids[row, : len(text)], mask[row, : len(text) - tail] = text, 1
        output: Tensor = model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=torch.from_numpy(mask).to(device),
            use_cache=False,
            return_dict=True,
        ).last_hidden_state
        return output

    def _padding_noise(self, model: nn.Module) -> float:
        """How far the model is from itself when the same texts are padded to one batch.

        Texts with a tail are left out: what a model that knows masked rows no better than padding makes of their tails
        depends on the padding, and would excuse anything.
        """
        padded = self._run(model, self.texts, self.tails)
        whole = self.tails.count(0)
        rows = torch.cat([padded[row, : len(text)] for row, text in enumerate(self.texts[:whole])])
        return float((rows.float() - self.exact[: len(rows)]).abs().max())


def compare(hidden: Tensor, exact: Tensor, own: Tensor, padding_noise: float, dtype: torch.dtype) -> str | None:
    """Why `hidden` [T, H] is not the model's, or None.

    float32: every number within 2e-5 x max(1, |reference|), or three times the model's own padding noise.
    Half precision: no further from float32, in root mean square, than 1.5 times the model's own half precision.
    """
    if not torch.isfinite(hidden).all():
        return "its hidden states are not finite"
    error = (hidden - exact).abs()
    if dtype == torch.float32:
        allowed = torch.clamp(TOLERANCE * exact.abs().clamp(min=1), min=3 * padding_noise)
        if (error > allowed).any():
            return f"hidden states differ by {float(error.max()):.2g}, its own padding noise is {padding_noise:.2g}"
        return None
    ours, theirs = (float((each - exact).pow(2).mean().sqrt()) for each in (hidden, own))
    if ours > HALF_RATIO * theirs:
        return f"{ours:.2g} away from float32, its own {str(dtype)[6:]} run is {theirs:.2g} away"
    return None


def _random_texts(config: Any, positions: int) -> list[Ids]:
    """Short, unequal and, where memory allows, one longer than the attention window or the distances told apart."""
    window = max(getattr(config, "sliding_window", None) or 0, relative.reach(config))
    longest = min(positions, max(40, 2 * window + 9 if 2 * window < LONGEST_PROBE else 40))
    lengths = [length for length in (5, longest, 1, 17, 17) if length <= positions]
    generator = np.random.default_rng(0)
    low = min(10, config.vocab_size // 2)
    return [generator.integers(low, config.vocab_size, length, dtype=np.int32) for length in lengths]


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Parameters in float32 for a while. Half numbers are float32 numbers too, so the way back is exact."""
    kept = {name: parameter.dtype for name, parameter in model.named_parameters()}
    try:
        for parameter in model.parameters():
            parameter.data = parameter.data.float()
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(kept[name])
