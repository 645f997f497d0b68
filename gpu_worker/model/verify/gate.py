"""The gate of every load: a model serves only if its batched run equals its own attention's run of single texts.

Some models accept another attention by name and then ignore part of it: DeBERTa mixes sequences. Without the gate, such
a model would be served with wrong numbers and without an error. The reference is what sentence-transformers runs: the
model's own attention as transformers chooses it, fed with the inputs that the model's own tokenizer class makes.
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
from gpu_worker.ragged.launches import launches
from gpu_worker.ragged.token_types import TokenTypes
from shared.errors import ModelRefused

TOLERANCE = 2e-5
"""Largest error of a float32 number, relative to the reference, or absolute where the reference is smaller than 1."""
HALF_RATIO = 1.5
"""Largest error of half precision, relative to the error of the model's own run in half precision."""
MOST_NOISE = 1e-4
"""Most padding noise that may widen the tolerance, relative to the size of a hidden state. Larger noise does not."""
OTHER_MEANING = 1e-3
"""Difference of hidden states, relative to their size, from which two attentions count as different computations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStates:
    """Hidden states [T, H] float32 of some probes, end to end; `numbers` and `lengths` say of which.

    `hidden` is from the run among other texts. `exact` is from the model's own attention in float32, `reference` from
    its own attention in the model's number format.
    """

    hidden: Tensor
    exact: Tensor
    reference: Tensor
    numbers: list[int]
    lengths: list[int]


class Reference:
    """Hidden states [T, H] of all probes by the model's own attention, taken before the model is changed.

    `states` are in the model's number format, `exact` in float32. `attention` is transformers' name of the attention
    that made them, `notice` what a user should know of it. `types` are the token types that an encoder must be fed.
    """

    def __init__(self, model: Any, probes: Probes, feeding: Feeding = NO_TYPES) -> None:
        """Runs the probes, one text at a time. Raises ModelRefused where a text's vector depends on earlier texts."""
        self.probes, self._feeding, self.notice = probes, feeding, ""
        self.attention = default_of(model)
        with torch.inference_mode():
            lengths = [len(text) for text in probes.texts]
            self._longest = lengths.index(max(lengths))
            before = self._first_run(model)
            rest = {number: self._run_alone(model, number) for number in range(len(lengths)) if number != self._longest}
            self.states = torch.cat([rest.get(number, before) for number in range(len(lengths))]).float()
            after = self._run_alone(model, self._longest)
            if (before - after).abs().max() > MOST_NOISE * max(1.0, float(before.abs().max())):
                raise ModelRefused(f"{type(model).__name__}: a text's vector depends on the texts before it")
            self.types = self._token_types(model)
            if _all_float32(model):
                self.exact, self.padding_noise = self.states, self._padding_noise(model, self.states)
            else:
                wanted = next(model.parameters()).dtype == torch.float32  # the dtype that `compare` goes by
                self.exact, self.padding_noise = in_float32(model, lambda: self._run_exactly(model, noise=wanted))

    def _first_run(self, model: Any) -> Tensor:
        """Runs the longest text; with the written-out attention where the default one cannot run at all."""
        try:
            return self._run_alone(model, self._longest)
        except ModelRefused as refused:
            if self.attention != FUSED:
                raise
            run_by(model, WRITTEN_OUT)
            self.attention, hidden = WRITTEN_OUT, self._run_alone(model, self._longest)
            self.notice = f"its default attention, {FUSED}, cannot run, so its {WRITTEN_OUT} one serves ({refused})"
            return hidden

    def _token_types(self, model: Any) -> TokenTypes | None:
        """Token types that the model is fed, None where it reads none.

        Types of a text that are all 0 are not fed if they change nothing.
        """
        types, texts = self._feeding.types, self.probes.texts[:1]
        if types is None:
            return None
        feedings = (self._feeding, replace(self._feeding, types=None))
        with_types, without_types = (feeding.padded(model, texts) for feeding in feedings)
        return replace(types, zeros=not torch.equal(with_types, without_types))

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
        """Raises ModelRefused, with figures, where texts that run as one batch differ from the reference.

        The arguments are those of `among_others`.
        """
        states = self.among_others(encoder, numbers, run)
        verdict = compare(states.hidden, states.exact, states.reference, self.padding_noise, encoder.dtype)
        if verdict:
            raise ModelRefused(f"it does not run among other texts as it runs alone: {verdict}")

    def among_others(
        self,
        encoder: Encoder,
        numbers: Sequence[int] | None = None,
        run: Callable[[RaggedBatch], Tensor] | None = None,
    ) -> ProbeStates:
        """Runs the texts of these `numbers`, or all texts, as one batch, in the order that texts have in a step.

        `run` computes the batch in place of the encoder. Raises ModelRefused where not every layer of a packed encoder
        attends through the packed attention.
        """
        probes = self.probes
        numbers = [*range(len(probes.texts)), *probes.again] if numbers is None else numbers
        tails = [probes.tails[number] for number in numbers]
        order = np.lexsort((tails, [len(probes.texts[number]) for number in numbers]))
        batch = probes.batch([numbers[place] for place in order], encoder)
        with torch.inference_mode():
            if run is not None:
                hidden = run(batch)
            elif isinstance(encoder, PackedEncoder):
                hidden, calls = encoder.run_counting(batch)
                _check_attention_calls(encoder, calls)
            else:
                hidden = encoder(batch)
            rows = torch.from_numpy(batch.rows_of(np.argsort(order))).to(hidden.device)
            lengths = [len(text) for text in probes.texts]
            reference = torch.cat([self.states.split(lengths)[number] for number in numbers])
        return ProbeStates(
            hidden=hidden[rows].float(),
            exact=self.exact_of(numbers),
            reference=reference,
            numbers=list(numbers),
            lengths=[lengths[number] for number in numbers],
        )

    def run_one_by_one(self, model: nn.Module, numbers: Sequence[int] | None = None) -> Tensor:
        """Hidden states [T, H] float32 of the texts of these `numbers`, or all texts, end to end.

        Every text is run alone, by the model's own attention.
        """
        numbers = range(len(self.probes.texts)) if numbers is None else numbers
        return torch.cat([self._run_alone(model, number) for number in numbers]).float()

    def exact_of(self, numbers: Sequence[int]) -> Tensor:
        """The part [T, H] of `exact` that belongs to the texts of these `numbers`, in their order."""
        states = self.exact.split([len(text) for text in self.probes.texts])
        return torch.cat([states[number] for number in numbers])

    @property
    def whole(self) -> list[int]:
        """Numbers of the texts without a tail: all their tokens are attended to."""
        return [number for number, tail in enumerate(self.probes.tails) if not tail]

    def one_launch_batch(self, tokens: int, sequences: int, longest: int) -> list[int]:
        """Numbers of texts without a tail that together fit into a batch of this size and take one attention launch.

        At least one token of the batch stays free.
        """
        lengths = [len(text) for text in self.probes.texts]
        usable = [number for number in self.whole if lengths[number] <= longest]
        numbers: list[int] = []
        free_tokens = tokens - 1
        for number in islice(cycle(usable), sequences + len(usable)):  # a round more, since texts too long are skipped
            if lengths[number] <= free_tokens and len(numbers) < sequences:
                numbers.append(number)
                free_tokens -= lengths[number]
        while len(launches(np.array(sorted(lengths[number] for number in numbers), dtype=np.int64))) > 1:
            numbers.remove(max(numbers, key=lengths.__getitem__))
        return numbers

    def _run_exactly(self, model: nn.Module, *, noise: bool) -> tuple[Tensor, float]:
        """Hidden states [T, H] of all texts, and the padding noise, of a model whose weights are float32 for now.

        Without `noise`, which no tolerance of half precision goes by, it is 0.
        """
        exact = self.run_one_by_one(model)
        if noise:
            return exact, self._padding_noise(model, exact)
        self._compare_attentions(model, exact)
        return exact, 0.0

    def _run_alone(self, model: Any, number: int) -> Tensor:
        """Hidden states [L, H] of one text; a text that the tokenizer made is run with all inputs that it made."""
        inputs = self.probes.inputs(number)
        if inputs is not None:
            return run(model, {name: values[None] for name, values in inputs.items()})[0]
        return self._feeding.alone(model, self.probes.texts[number], self.probes.tails[number])

    def _padding_noise(self, model: nn.Module, exact: Tensor) -> float:
        """Largest difference of hidden states between the model's own runs: of a text alone, in a padded batch, and
        twice in one batch.

        Rounding grows with length, so the longest text also runs with the model's other attention, where the class has
        two. Texts with a tail are left out: models that treat masked tokens as padding give their tails other hidden
        states in every batch, and this noise would hide real errors.
        """
        alone = exact.split([len(text) for text in self.probes.texts])
        numbers = range(self.probes.padded)
        texts = [self.probes.texts[number] for number in numbers]
        padded = self._feeding.padded(model, texts)
        noises = [_distance(padded[number, : len(texts[number])], alone[number]) for number in numbers]
        # An accelerator takes other kernels for other numbers of rows, so that rounding differs for every length.
        drawn = [number for number in self.whole if self.probes.inputs(number) is None]
        again = numbers if exact.device.type == "cpu" else drawn
        for number in again:
            pair = self._feeding.padded(model, [self.probes.texts[number]] * 2)
            noises.append(_distance(pair[1], alone[number]))
        noises.append(self._compare_attentions(model, exact))
        return max((noise for noise in noises if noise <= MOST_NOISE * _scale(exact)), default=0.0)

    def _compare_attentions(self, model: nn.Module, exact: Tensor) -> float:
        """Runs the longest text with the model's other attention, and gives their distance; 0 where the class has one.

        Sets `notice` where they compute different things.
        """
        other, distance = other_than(model, self.attention), 0.0
        if other is None:
            return distance
        alone = exact.split([len(text) for text in self.probes.texts])[self._longest]
        with suppress(ModelRefused), attending_by(model, other):
            distance = _distance(self._run_alone(model, self._longest), alone)
            if not distance <= OTHER_MEANING * _scale(exact):
                self.notice = (
                    f"its {self.attention} attention, which transformers runs for its config by default, gives other "
                    f"hidden states than its {other} one, by up to {distance:.2g}: the default serves"
                )
        return distance


def _distance(hidden: Tensor, exact: Tensor) -> float:
    """Largest difference of two numbers in the same place."""
    return float((hidden.float() - exact).abs().max())


def _check_attention_calls(encoder: PackedEncoder, calls: int) -> None:
    """Raises ModelRefused unless every layer attended through the packed attention once."""
    layers = int(getattr(encoder.model.config, "num_hidden_layers", calls))
    if calls != layers:
        raise ModelRefused(f"it attended {calls} times through the packed attention, its config says {layers} layers")


def compare(hidden: Tensor, exact: Tensor, reference: Tensor, padding_noise: float, dtype: torch.dtype) -> str | None:
    """Why the hidden states `hidden` [T, H] are not the model's, or None where they are; see `ProbeStates`.

    In float32, every number must be within 2e-5 x max(1, |exact|) of `exact`, or within three times the padding noise.
    In half precision, the root mean square error may be 1.5 times the error of `reference`.
    """
    if not torch.isfinite(hidden).all():
        return "its hidden states are not finite"
    error = (hidden - exact).abs()
    if dtype == torch.float32:
        allowed = torch.clamp(TOLERANCE * exact.abs().clamp(min=1), min=3 * padding_noise)
        if (error > allowed).any():
            return f"hidden states differ by {float(error.max()):.2g}, its own padding noise is {padding_noise:.2g}"
        return None
    error_here, error_of_model = (float((states - exact).pow(2).mean().sqrt()) for states in (hidden, reference))
    if error_here > HALF_RATIO * error_of_model:
        return f"{error_here:.2g} away from float32, its own {str(dtype)[6:]} run is {error_of_model:.2g} away"
    return None


def _scale(exact: Tensor) -> float:
    """The size of hidden states [T, H] by which distances are judged."""
    return max(1.0, float(exact.pow(2).mean().sqrt()))


def _all_float32(model: nn.Module) -> bool:
    return all(parameter.dtype == torch.float32 for parameter in model.parameters())
