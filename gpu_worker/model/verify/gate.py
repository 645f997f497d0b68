"""The gate of every load: a model serves only if its batched run equals its own code's run of single texts.

Some models accept another attention by name and then ignore part of it: DeBERTa mixes sequences. Without the gate, such
a model would be served with wrong numbers and without an error. The reference is what sentence-transformers runs: the
model's own class, with the attention that transformers chooses, fed with the inputs that its own tokenizer class makes.
Every way to compute a batch is held against it: packed, by the kernels, in graphs, in pieces.
"""

import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.device.memory import ran_out
from gpu_worker.model.adapters.lora import AdapterUpdates, applied, merged
from gpu_worker.model.encoder.encoder import Encoder, Run, StaticEncoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.heads.heads import LAST_REAL, LATE, DenseHead, HeadClassifier, Heads, SpladeHead
from gpu_worker.model.heads.pooling import pool
from gpu_worker.model.verify.own_run import (
    FUSED,
    NO_TYPES,
    WRITTEN_OUT,
    Feeding,
    accepted,
    at_once,
    attending_by,
    default_of,
    in_float32,
    other_than,
    run_alone,
    run_by,
)
from gpu_worker.model.verify.probes import Probes
from gpu_worker.model.verify.tolerances import (
    Expected,
    exact_logits,
    exact_states,
    logit_error,
    rounded_logits,
    rounded_states,
    size_of,
)
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.texts import TokenTypes
from gpu_worker.repository.files import first_line
from gpu_worker.repository.recipe import Recipe
from shared.errors import ModelRefused

MOST_NOISE = 1e-4
"""Most padding noise that may widen the tolerance, relative to the size of a hidden state. Larger noise does not."""
OTHER_MEANING = 1e-3
"""Difference of hidden states, relative to their size, from which two attentions count as different computations."""
ADAPTED_TOKENS, ADAPTED_TEXTS = 128, 6
"""Most tokens of a text that is compared with adapters, and most texts of each adapter."""
ROWS_READ = ("cls", "lasttoken", LAST_REAL, "mean", LATE)
"""Poolings that a ForSequenceClassification may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Hidden states of all probes by the model's own code, taken before the model is changed.

    `states` are those of each text, [L, H] float32, in the model's number format, `exact` by float32 weights. `noise`
    is the model's padding noise, 0 in half precision. `attention` is transformers' name of the attention that made
    them, `notice` what a user should know of it. `types` are the token types that an encoder must be fed.
    """

    probes: Probes
    feeding: Feeding
    states: Sequence[Tensor]
    exact: Sequence[Tensor]
    noise: float
    attention: str
    types: TokenTypes | None
    notice: str

    @property
    def width(self) -> int:
        """H, the size of a hidden state."""
        return self.exact[0].shape[1]

    def check(self, encoder: Encoder, numbers: Sequence[int] | None = None, run: Run | None = None) -> None:
        """Raises ModelRefused, with figures, where texts that run as one batch differ from the reference.

        The arguments are those of `among_others`.
        """
        verdict = exact_states(*self.among_others(encoder, numbers, run), encoder.dtype)
        verdict.check("it does not run among other texts as it runs alone")

    def check_rounded(self, encoder: Encoder) -> str:
        """How close an encoder of rounded layers is to the reference. Raises ModelRefused where it is too far off."""
        verdict = rounded_states(*self.among_others(encoder))
        verdict.check("rounded layers change it too much")
        return verdict.figures

    def among_others(
        self, encoder: Encoder, numbers: Sequence[int] | None = None, run: Run | None = None
    ) -> tuple[Tensor, Expected]:
        """Runs the texts of these `numbers`, or all texts, as one batch, in the order that texts have in a step.
        Returns their hidden states [T, H] float32, and what is expected of them.

        `run` computes the batch in place of the encoder. Raises ModelRefused where not every layer of a packed encoder
        attends through the packed attention.
        """
        texts, tails = self.probes.texts, self.probes.tails
        numbers = [*range(len(texts)), *self.probes.again] if numbers is None else numbers
        numbers = sorted(numbers, key=lambda number: (len(texts[number]), tails[number]))
        batch = self.probes.batch(numbers, encoder)
        with torch.inference_mode():
            if run is not None:
                hidden = run(batch)
            elif isinstance(encoder, PackedEncoder):
                hidden, calls = encoder.run_counting(batch)
                _check_attention_calls(encoder, calls)
            else:
                hidden = encoder(batch)
        return hidden.float(), self.expected(numbers)

    def expected(self, numbers: Sequence[int]) -> Expected:
        """What is expected of the texts of these `numbers`, end to end."""
        return Expected(
            exact=torch.cat([self.exact[number] for number in numbers]),
            rows=torch.cat([self.states[number] for number in numbers]),
            lengths=[len(self.exact[number]) for number in numbers],
            noise=self.noise,
        )


def take_reference(model: Any, probes: Probes, feeding: Feeding = NO_TYPES) -> Reference:
    """Runs the probes by the model as it was loaded, one text at a time: first and last the longest one, which finds
    out models that short texts change for good. Raises ModelRefused where a text's vector depends on earlier texts."""
    numbers, attention, notice = range(len(probes.texts)), default_of(model), ""
    longest = max(numbers, key=lambda number: len(probes.texts[number]))
    alone = partial(run_alone, model, feeding, probes)
    with torch.inference_mode():
        try:
            first = alone(longest)
        except ModelRefused as refused:
            if attention != FUSED:
                raise
            run_by(model, WRITTEN_OUT)
            attention, first = WRITTEN_OUT, alone(longest)
            notice = f"its default attention, {FUSED}, cannot run, so its {WRITTEN_OUT} one serves ({refused})"
        states = [first if number == longest else alone(number) for number in numbers]
        if (first - alone(longest)).abs().max() > MOST_NOISE * max(1.0, float(first.abs().max())):
            raise ModelRefused(f"{type(model).__name__}: a text's vector depends on the texts before it")
        types, other = _types_to_feed(model, probes, feeding), other_than(model, attention)

        def run_exactly() -> tuple[list[Tensor], float]:
            exact = [alone(number) for number in numbers]
            return exact, _distance_by(other, model, partial(alone, longest), exact[longest])

        if all(parameter.dtype == torch.float32 for parameter in model.parameters()):
            exact, noises = states, _padding_noises(model, probes, feeding, states)
            distance = _distance_by(other, model, partial(alone, longest), exact[longest])
            most = MOST_NOISE * _scale(exact)
            noise = max((noise for noise in (*noises, distance) if noise <= most), default=0.0)
        else:
            (exact, distance), noise = in_float32(model, run_exactly), 0.0
    if not distance <= OTHER_MEANING * _scale(exact):
        notice = (
            f"its {attention} attention, which transformers runs for its config by default, gives other hidden states "
            f"than its {other} one, by up to {distance:.2g}: the default serves"
        )
    return Reference(
        probes=probes,
        feeding=feeding,
        states=states,
        exact=exact,
        noise=noise,
        attention=attention,
        types=types,
        notice=notice,
    )


def _types_to_feed(model: Any, probes: Probes, feeding: Feeding) -> TokenTypes | None:
    """Token types that the model is fed, None where it reads none.

    Types of a text that are all 0 are not fed if they change nothing.
    """
    if feeding.types is None:
        return None
    feedings = (feeding, replace(feeding, types=None))
    with_types, without_types = (variant.padded(model, probes.texts[:1]) for variant in feedings)
    return replace(feeding.types, zeros=not torch.equal(with_types, without_types))


def _padding_noises(model: nn.Module, probes: Probes, feeding: Feeding, exact: Sequence[Tensor]) -> list[float]:
    """Largest differences of hidden states between the model's own runs: of a text alone, in a padded batch, and twice
    in one batch. Rounding grows with length, so the distance of its two attentions for the longest text counts as well.

    Texts with a tail are left out: models that treat masked tokens as padding give their tails other hidden states in
    every batch, and this noise would hide real errors.
    """
    numbers, texts = range(probes.padded), probes.texts
    padded = feeding.padded(model, [texts[number] for number in numbers])
    noises = [_distance(padded[number, : len(texts[number])], exact[number]) for number in numbers]
    # An accelerator takes other kernels for other numbers of rows, so that rounding differs for every length.
    drawn = [number for number in probes.whole if probes.inputs(number) is None]
    twice = numbers if exact[0].device.type == "cpu" else drawn
    return noises + [_distance(feeding.padded(model, [texts[number]] * 2)[1], exact[number]) for number in twice]


def _distance_by(other: str | None, model: nn.Module, run: Callable[[], Tensor], exact: Tensor) -> float:
    """How far a run by the model's `other` attention is from `exact`; 0 where the class has none that runs."""
    distance = 0.0
    if other is not None:
        with suppress(ModelRefused), attending_by(model, other):
            distance = _distance(run(), exact)
    return distance


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReference:
    """Logits of some short texts by the model's own class, one text at a time, taken before the model is changed.

    Where the model reads token types, texts have second segments. It also finds which row a classifier reads, the
    first, the last, the mean or every row: the one whose logits agree. So no model family has to be known by name.
    """

    probes: Probes
    expected: Expected
    name: str

    def check(self, encoder: Encoder, heads: Heads) -> None:
        """Chooses which row a classifier reads. Raises ModelRefused where the head's logits are not the model's."""
        batch, hidden = self._run(encoder)
        with torch.inference_mode():
            if isinstance(heads.classifier, HeadClassifier):
                self._choose_row(heads.classifier, hidden, batch)
            verdict = exact_logits(logits_of(heads, hidden, batch), self.expected, encoder.dtype)
        verdict.check(f"{self.name} does not classify among other texts as it does alone")

    def check_rounded(self, encoder: Encoder, heads: Heads) -> str:
        """How close logits of rounded layers are; `check` must have chosen the row before.

        Raises ModelRefused where they are too far off.
        """
        batch, hidden = self._run(encoder)
        with torch.inference_mode():
            verdict = rounded_logits(logits_of(heads, hidden, batch), self.expected)
        verdict.check("rounded layers change its logits too much")
        return verdict.figures

    def _run(self, encoder: Encoder) -> tuple[RaggedBatch, Tensor]:
        """Runs all texts as one batch. Returns the batch and its hidden states [T, H]."""
        batch = self.probes.batch(range(len(self.probes.texts)), encoder)
        with torch.inference_mode():
            return batch, encoder(batch)

    def _choose_row(self, classifier: HeadClassifier, hidden: Tensor, batch: RaggedBatch) -> None:
        """Sets the pooling of a classifier to the one whose logits err least."""
        errors = {}
        for pooling in ROWS_READ:
            classifier.pooling = pooling
            errors[pooling] = logit_error(classifier(hidden, batch), self.expected)
        classifier.pooling = min(errors, key=errors.__getitem__)  # in half precision several may pass


def take_head_reference(model: Any, recipe: Recipe, reference: Reference, positions: int) -> HeadReference:
    """Runs the texts by the whole class as loaded, with its own attention; its encoder was fed as in `reference`."""
    vocabulary, feeding = int(model.config.get_text_config().vocab_size), reference.feeding
    probes = reference.probes.for_heads(vocabulary, positions, pairs=feeding.types is not None)
    all_inputs = [feeding.alone(probes, number) for number in range(len(probes.texts))]

    def run() -> Tensor:
        """Logits [S or T, labels] float32 of all texts; every text is run alone."""
        logits = [model(**accepted(model, inputs)).logits.float() for inputs in all_inputs]
        return torch.cat([_head_logits(recipe, of_text) for of_text in logits])

    with torch.inference_mode():
        rows = run()
        return HeadReference(
            probes=probes, expected=Expected(exact=in_float32(model, run), rows=rows), name=type(model).__name__
        )


def _head_logits(recipe: Recipe, logits: Tensor) -> Tensor:
    """Logits that the head should give for a text, from those that the model's own class gives for it."""
    classifier = recipe.classifier
    if recipe.weights_of == "sequence-classification":
        return logits
    if classifier is None or classifier.yes_no is None:
        return logits[0]
    yes, no = classifier.yes_no
    last = logits[:, -1]
    odds = last[:, [yes]] if no is None else last[:, [yes]] - last[:, [no]]
    return (odds - classifier.logit_mean) / classifier.logit_sigma


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterReference:
    """Hidden states of some probes, those of these `numbers`, without an adapter and with each, by their names; taken
    before the model is changed: by the model as it was loaded, one text at a time, with an adapter as the papers write
    it."""

    probes: Probes
    numbers: Sequence[int]
    expected: Mapping[str, Expected]

    def check(self, encoder: Encoder) -> None:
        """Runs texts of all adapters, and of none, in one step. Raises ModelRefused where they do not run packed, or
        where rows differ from the reference, with figures."""
        if reason := encoder.unpacked_reason:
            raise ModelRefused(f"--adapter needs a model that runs packed, this one does not: {reason}")
        count = len(self.expected)
        adapters = np.arange(count).repeat(len(self.numbers)).tolist()
        batch = self.probes.batch([*self.numbers] * count, encoder, adapters)
        with torch.inference_mode():
            of_adapters = encoder(batch).float().chunk(count)
        for (name, expected), hidden in zip(self.expected.items(), of_adapters, strict=True):
            verdict = exact_states(hidden, expected, encoder.dtype)
            verdict.check(f"--adapter {name}: it does not run among other texts as it runs alone")


def take_adapter_reference(
    model: Any, reference: Reference, adapters: Mapping[str, AdapterUpdates]
) -> AdapterReference:
    """Runs the probes. `model` as it was loaded, with its head; `adapters` by their names, in their order."""
    probes, half = reference.probes, ADAPTED_TEXTS // 2
    usable = [number for number in probes.whole if len(probes.texts[number]) <= ADAPTED_TOKENS]
    numbers = sorted({*usable[:half], *usable[-half:]}, key=lambda number: len(probes.texts[number]))
    expected = {"(texts without one)": reference.expected(numbers)}

    def run() -> Tensor:
        with torch.inference_mode():
            return torch.cat([run_alone(model.base_model, reference.feeding, probes, number) for number in numbers])

    for name, updates in adapters.items():
        with applied(model, updates):
            states = run()
        with at_once(model), applied(model, updates):
            exact = run()
        with at_once(model), merged(model, updates):
            distance = _distance(run(), exact)
        rounding = distance if distance <= MOST_NOISE * max(1.0, size_of(exact)) else 0.0
        expected[name] = Expected(exact=exact, rows=states, noise=max(reference.noise, rounding))
    return AdapterReference(probes=probes, numbers=numbers, expected=expected)


def check_means(encoder: StaticEncoder, head: DenseHead, probes: Probes) -> None:
    """Raises ModelRefused where a static embedding's means of a batch differ from those of single texts by PyTorch's
    embedding bag, which is what sentence-transformers runs."""
    table: Tensor = encoder.model.weight
    batch = probes.batch(range(len(probes.texts)), encoder)
    with torch.inference_mode():
        rows = pool(encoder(batch), batch, head.poolings)
        ids = [torch.from_numpy(text.astype(np.int64))[None].to(encoder.device) for text in probes.texts]
        exact = torch.cat([F.embedding_bag(text, table.float(), mode="mean") for text in ids])
    verdict = exact_states(rows, Expected(exact=exact, rows=exact), torch.float32)
    verdict.check("its means are not those of single texts")


def logits_of(heads: Heads, hidden: Tensor, batch: RaggedBatch) -> Tensor:
    """Logits of the head that gives them: [S, labels] for sequences, or [T, labels] for tokens."""
    logits: Tensor
    if isinstance(heads.sparse, SpladeHead):
        logits = heads.sparse.head(hidden[None])[0]
    elif heads.token_classifier is not None:
        logits = heads.token_classifier(hidden)
    else:
        assert heads.classifier is not None
        logits = heads.classifier(hidden, batch)
    return logits


def _distance(hidden: Tensor, exact: Tensor) -> float:
    """Computes the largest difference of two numbers in the same place."""
    return float((hidden.float() - exact).abs().max())


def _scale(exact: Sequence[Tensor]) -> float:
    """The size of hidden states by which distances are judged."""
    return max(1.0, size_of(torch.cat([*exact])))


def reason_of(error: Exception) -> str:
    """Why a way to run a model does not serve; for foreign code, the function that failed. Reraises where memory ran
    out."""
    if isinstance(error, ModelRefused):
        return str(error)
    if ran_out(error):
        raise error
    innermost = deque(traceback.walk_tb(error.__traceback__), maxlen=1)[0][0]
    return f"{innermost.f_code.co_qualname} fails on such a batch: {first_line(error)}"


def _check_attention_calls(encoder: PackedEncoder, calls: int) -> None:
    """Raises ModelRefused unless every layer that attends did so through the packed attention once."""
    layers = encoder.attending_layers
    if layers is not None and calls != layers:
        raise ModelRefused(f"it attended {calls} times through the packed attention, its config says {layers} layers")
