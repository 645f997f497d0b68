"""The gate of adapters beside each other: in one step, each gives the rows that the model gives with it alone.

The reference is the model as it was loaded, one text at a time, with an adapter as the papers write it.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.adapters.parts import AdapterParts, applied, merged
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.verify.gate import MOST_NOISE, Reference, compare
from gpu_worker.model.verify.widened import at_once
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused

LONGEST, TEXTS = 128, 6
"""Most tokens of a text that is compared, and most texts of each adapter."""
TIMED_TEXTS, TIMED_TOKENS, ROUNDS = 16, 64, 3
"""Texts of a timed step, the tokens of each, and how often it is run."""


class AdapterReference:
    """Hidden states of some probes with each adapter, taken before the model is changed."""

    def __init__(self, model: Any, reference: Reference, adapters: Mapping[str, AdapterParts]) -> None:
        """Runs the probes. `model` as it was loaded, with its head; `adapters` by their names, in their order."""
        self._reference, self._names = reference, ["", *adapters]
        texts = reference.probes.texts
        usable = [number for number in reference.whole if len(texts[number]) <= LONGEST]
        self._numbers = [*usable[: TEXTS // 2], *usable[TEXTS // 2 :][-TEXTS // 2 :]]
        self._states = [_states(reference, model, self._numbers)]
        self._exact = [reference.exact_of(self._numbers)]
        self._noise = [reference.padding_noise]
        for parts in adapters.values():
            with applied(model, parts):
                self._states.append(_states(reference, model, self._numbers))
            with at_once(model), applied(model, parts):
                self._exact.append(_states(reference, model, self._numbers))
            with at_once(model), merged(model, parts):
                rounding = _rounding(self._exact[-1], _states(reference, model, self._numbers))
            self._noise.append(max(reference.padding_noise, rounding))

    def checked(self, encoder: Encoder, unpacked_reason: str) -> str:
        """Checks all adapters, and returns a line on what they cost. `unpacked_reason`: why texts do not run packed.

        Raises ModelRefused where they do not, or an adapter's rows are wrong.
        """
        if unpacked_reason:
            raise ModelRefused(f"--adapter needs a model that runs packed, this one does not: {unpacked_reason}")
        self.check(encoder)
        times = f"{self.times(encoder):.2f} times as long as one without them"
        return f"a step whose texts take turns through the adapters takes {times}"

    def check(self, encoder: Encoder) -> None:
        """Raises ModelRefused, with figures, where texts of all adapters in one batch differ from the reference."""
        pairs = [(adapter, number) for number in self._numbers for adapter in range(len(self._names))]
        rows = self._run(encoder, pairs)
        for adapter, name in enumerate(self._names):
            hidden = torch.cat([rows[adapter, number] for number in self._numbers]).float()
            exact, states, noise = self._exact[adapter], self._states[adapter], self._noise[adapter]
            verdict = compare(hidden, exact, states, noise, encoder.dtype)
            if verdict:
                raise ModelRefused(f"--adapter {name or '(texts without one)'}: among others, {verdict}")

    def times(self, encoder: Encoder) -> float:
        """How many times as long a step takes whose texts take turns through the adapters as one without any."""
        filler = np.resize(self._reference.probes.texts[0], TIMED_TOKENS)
        turns = [1 + place % (len(self._names) - 1) for place in range(TIMED_TEXTS)]
        batches = {
            name: RaggedBatch.pack(
                [filler] * TIMED_TEXTS, encoder.device, encoder.uncounted, types=encoder.token_types, adapters=adapters
            )
            for name, adapters in (("with", sorted(turns)), ("without", []))
        }
        seconds = dict.fromkeys(batches, float("inf"))
        with torch.inference_mode():
            for _ in range(ROUNDS):
                for name, batch in batches.items():
                    start = time.perf_counter()
                    encoder(batch).sum().item()
                    seconds[name] = min(seconds[name], time.perf_counter() - start)
        return seconds["with"] / seconds["without"]

    def _run(self, encoder: Encoder, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Tensor]:
        """Hidden states by adapter and probe, of one batch in the order that a step has."""
        texts, seconds = self._reference.probes.texts, self._reference.probes.second_segments
        ordered = sorted(pairs, key=lambda pair: (pair[0], len(texts[pair[1]])))
        batch = RaggedBatch.pack(
            [texts[number] for _, number in ordered],
            encoder.device,
            encoder.uncounted,
            types=encoder.token_types,
            second_segments=[seconds[number] for _, number in ordered],
            adapters=[adapter for adapter, _ in ordered],
        )
        with torch.inference_mode():
            return dict(zip(ordered, encoder(batch).split(batch.lengths), strict=True))


def _states(reference: Reference, model: Any, numbers: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        return reference.run_one_by_one(model.base_model, numbers)


def _rounding(exact: Tensor, as_merged: Tensor) -> float:
    """Largest difference between two ways to compute the same states; 0 where it is too large to be their rounding."""
    distance = float((exact - as_merged).abs().max())
    return distance if distance <= MOST_NOISE * max(1.0, float(exact.pow(2).mean().sqrt())) else 0.0
