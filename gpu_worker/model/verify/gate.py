"""The gate of every load: a model serves only if its batched run equals its own attention's run of single texts.

Models that accept a foreign attention by name and then ignore part of it (DeBERTa mixes sequences) would otherwise
be served wrongly in silence. The reference is what sentence-transformers runs: the model's own attention by default,
fed with what its own tokenizer class gives.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.verify.feeding import NO_TYPES, Feeding, run
from gpu_worker.model.verify.probes import Probes
from gpu_worker.model.verify.reference_attention import FUSED, WRITTEN_OUT, attending_by, default_of, other_than, run_by
from gpu_worker.model.verify.widened import in_float32
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.launches import LEAST_SAVED, launches
from gpu_worker.ragged.token_types import TokenTypes
from shared.errors import ModelRefused

TOLERANCE = 2e-5
HALF_RATIO = 1.5
MOST_NOISE = 1e-4
"""Most padding noise that is allowed for. Where padding changes a model by more, that widens no tolerance."""
OTHER_MEANING = 1e-3
"""Times the size of a hidden state. Two attentions that differ by more than this do not compute the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStates:
    """Hidden states [T, H] float32 of the probes of these `numbers` and `lengths`, end to end: of the run among others,
    of the model's own attention in float32, and of that in the model's number format."""

    hidden: Tensor
    exact: Tensor
    own: Tensor
    numbers: list[int]
    lengths: list[int]


class Reference:
    """Hidden states of the probes by the model's own attention, taken before anything is changed.

    `attention` names it; `notice`: what a user should know of it. `types`: those that an encoder is to be fed.
    """

    def __init__(self, model: Any, probes: Probes, feeding: Feeding = NO_TYPES) -> None:
        """`model` runs its own attention, and is fed with `feeding`."""
        self.probes, self._feeding, self.notice = probes, feeding, ""
        self.attention = default_of(model)
        with torch.inference_mode():
            lengths = [len(text) for text in probes.texts]
            self._longest = lengths.index(max(lengths))
            fresh = self._first(model)
            self.own = self._one_by_one(model)
            again = self._alone(model, self._longest)
            if (fresh - again).abs().max() > MOST_NOISE * max(1.0, float(fresh.abs().max())):
                raise ModelRefused(f"{type(model).__name__}: a text's vector depends on the texts before it")
            self.types = self._types(model)
            if _all_float32(model):
                self.exact, self.padding_noise = self.own, self._padding_noise(model, self.own)
            else:
                self.exact, self.padding_noise = in_float32(model, lambda: self._exactly(model))

    def _first(self, model: Any) -> Tensor:
        """Runs the longest text; by the written-out attention where the default one cannot run at all."""
        try:
            return self._alone(model, self._longest)
        except ModelRefused as refused:
            if self.attention != FUSED:
                raise
            run_by(model, WRITTEN_OUT)
            self.attention, hidden = WRITTEN_OUT, self._alone(model, self._longest)
            self.notice = f"its default attention, {FUSED}, cannot run, so its {WRITTEN_OUT} one serves ({refused})"
            return hidden

    def _types(self, model: Any) -> TokenTypes | None:
        """Token types of the model. Types that are all 0 are left out if they change nothing."""
        types, texts = self._feeding.types, self.probes.texts[:1]
        if types is None:
            return None
        fed, unfed = (feeding.padded(model, texts) for feeding in (self._feeding, replace(self._feeding, types=None)))
        return replace(types, zeros=not torch.equal(fed, unfed))

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return self.exact.shape[1]

    def check(
        self,
        encoder: Encoder,
        numbers: Sequence[int] | None = None,
        run: Callable[[RaggedBatch], Tensor] | None = None,
    ) -> None:
        """Raises ModelRefused, with figures, where the run among others does not equal the reference.

        See `among_others` for what is run.
        """
        found = self.among_others(encoder, numbers, run)
        verdict = compare(found.hidden, found.exact, found.own, self.padding_noise, encoder.dtype)
        if verdict:
            raise ModelRefused(f"it does not run among other texts as it runs alone: {verdict}")

    def among_others(
        self,
        encoder: Encoder,
        numbers: Sequence[int] | None = None,
        run: Callable[[RaggedBatch], Tensor] | None = None,
    ) -> ProbeStates:
        """The texts of these `numbers`, or all, run as one batch, in the order in which steps have them.

        `run`: what runs it in place of the encoder. Raises ModelRefused where a packed encoder passes its attention by.
        """
        probes = self.probes
        numbers = [*range(len(probes.texts)), *probes.again] if numbers is None else numbers
        tails = [probes.tails[each] for each in numbers]
        order = np.lexsort((tails, [len(probes.texts[each]) for each in numbers]))
        ordered, seconds = [numbers[each] for each in order], probes.seconds
        batch = RaggedBatch.pack(
            [probes.texts[each] for each in ordered],
            encoder.device,
            encoder.uncounted,
            types=encoder.token_types,
            second_segments=[seconds[each] for each in ordered],
            tails=[probes.tails[each] for each in ordered],
        )
        with torch.inference_mode():
            if run is not None:
                hidden = run(batch)
            elif isinstance(encoder, PackedEncoder):
                hidden, calls = encoder.run_counting(batch)
                _check_calls(encoder, calls)
            else:
                hidden = encoder(batch)
            rows = torch.from_numpy(batch.rows_of(np.argsort(order))).to(hidden.device)
            lengths = [len(text) for text in probes.texts]
            exact, own = (torch.cat([each.split(lengths)[n] for n in numbers]) for each in (self.exact, self.own))
        return ProbeStates(
            hidden=hidden[rows].float(),
            exact=exact,
            own=own,
            numbers=list(numbers),
            lengths=[lengths[n] for n in numbers],
        )

    @property
    def whole(self) -> list[int]:
        """Numbers of the texts all of whose tokens are attended to."""
        return [number for number, tail in enumerate(self.probes.tails) if not tail]

    def uneven(self) -> list[int]:
        """Numbers of a batch that attention takes two launches for: many short texts and a long one, if any is long."""
        by_length = sorted(self.whole, key=lambda number: len(self.probes.texts[number]))
        return [by_length[0]] * LEAST_SAVED + [by_length[-1]]

    def one_launch_batch(self, tokens: int, sequences: int, longest: int) -> list[int]:
        """Numbers of texts without a tail that make one batch of that size at most, attended to in one launch.

        One token at least is left free.
        """
        lengths = [len(text) for text in self.probes.texts]
        usable = [number for number in self.whole if lengths[number] <= longest]
        found: list[int] = []
        free = tokens - 1
        for number in islice(cycle(usable), sequences + len(usable)):  # a round more, since long ones are passed over
            if lengths[number] <= free and len(found) < sequences:
                found.append(number)
                free -= lengths[number]
        while len(launches(np.array(sorted(lengths[number] for number in found), dtype=np.int64))) > 1:
            found.remove(max(found, key=lengths.__getitem__))
        return found

    def _exactly(self, model: nn.Module) -> tuple[Tensor, float]:
        exact = self._one_by_one(model)
        return exact, self._padding_noise(model, exact)

    def _one_by_one(self, model: nn.Module) -> Tensor:
        """Hidden states [T, H] float32 of all texts, end to end."""
        return torch.cat([self._alone(model, number) for number in range(len(self.probes.texts))]).float()

    def _alone(self, model: Any, number: int) -> Tensor:
        """Hidden states [L, H] of one text; a text that the tokenizer made is run with all inputs that it gave."""
        written = self.probes.inputs(number)
        if written is not None:
            return run(model, {name: each[None] for name, each in written.items()})[0]
        return self._feeding.alone(model, self.probes.texts[number], self.probes.tails[number])

    def _padding_noise(self, model: nn.Module, exact: Tensor) -> float:
        """How far the model is from itself when the same texts are padded to one batch, or each stands there twice.

        Long texts round more, so the longest runs once more by the other of its attentions, where the class has two.
        Texts with a tail are left out: what a model that knows masked rows no better than padding makes of their tails
        depends on the padding, and would excuse anything.
        """
        alone = exact.split([len(text) for text in self.probes.texts])
        numbers = range(self.probes.padded)
        texts = [self.probes.texts[each] for each in numbers]
        padded = self._feeding.padded(model, texts)
        noises = [_distance(padded[each, : len(texts[each])], alone[each]) for each in numbers]
        noises += [_distance(self._feeding.padded(model, [texts[each]] * 2)[1], alone[each]) for each in numbers]
        scale = max(1.0, float(exact.pow(2).mean().sqrt()))
        other = other_than(model, self.attention)
        if other is not None:
            with suppress(ModelRefused), attending_by(model, other):
                noises.append(_distance(self._alone(model, self._longest), alone[self._longest]))
                self._compare_attentions(other, noises[-1], scale)
        return max((each for each in noises if each <= MOST_NOISE * scale), default=0.0)

    def _compare_attentions(self, other: str, distance: float, scale: float) -> None:
        if not distance <= OTHER_MEANING * scale:
            self.notice = (
                f"its {self.attention} attention, which transformers runs for its config by default, gives other "
                f"hidden states than its {other} one, by up to {distance:.2g}: the default serves"
            )


def _distance(hidden: Tensor, exact: Tensor) -> float:
    return float((hidden.float() - exact).abs().max())


def _check_calls(encoder: PackedEncoder, calls: int) -> None:
    layers = int(getattr(encoder.model.config, "num_hidden_layers", calls))
    if calls != layers:
        raise ModelRefused(f"it attended {calls} times through the packed attention, its config says {layers} layers")


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


def _all_float32(model: nn.Module) -> bool:
    return all(each.dtype == torch.float32 for each in model.parameters())
