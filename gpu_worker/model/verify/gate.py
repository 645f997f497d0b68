"""The gate of every load: a model serves only if its batched run equals its own code's run of single texts.

Some models accept another attention by name and then ignore part of it: DeBERTa mixes sequences. Without the gate, such
a model would be served with wrong numbers and without an error. The reference is what sentence-transformers runs: the
model's own class, with the attention that transformers chooses, fed with the inputs that its own tokenizer class makes.
Every way to compute a batch is held against it: packed, by the kernels, in graphs, in pieces.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    attending_by,
    default_of,
    other_than,
    run,
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
from gpu_worker.model.verify.widened import in_float32
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.launches import launches
from gpu_worker.ragged.token_types import TokenTypes
from gpu_worker.repository.recipe import Recipe
from shared.errors import ModelRefused

MOST_NOISE = 1e-4
"""Most padding noise that may widen the tolerance, relative to the size of a hidden state. Larger noise does not."""
OTHER_MEANING = 1e-3
"""Difference of hidden states, relative to their size, from which two attentions count as different computations."""
ROWS_READ = ("cls", "lasttoken", LAST_REAL, "mean", LATE)
"""Poolings that a ForSequenceClassification may use."""


class Reference:
    """Hidden states of all probes by the model's own code, taken before the model is changed.

    `states` are those of each text, [L, H] float32, in the model's number format, `exact` by float32 weights. `noise`
    is the model's padding noise, 0 in half precision. `attention` is transformers' name of the attention that made
    them, `notice` what a user should know of it. `types` are the token types that an encoder must be fed, `width` is H.
    """

    def __init__(self, model: Any, probes: Probes, feeding: Feeding = NO_TYPES) -> None:
        """Runs the probes, one text at a time. Raises ModelRefused where a text's vector depends on earlier texts."""
        self.probes, self._feeding, self.notice = probes, feeding, ""
        self.attention = default_of(model)
        lengths = [len(text) for text in probes.texts]
        self._longest = lengths.index(max(lengths))
        with torch.inference_mode():
            before = self._first_run(model)
            rest = {number: self._alone(model, number) for number in range(len(lengths)) if number != self._longest}
            self.states = [rest.get(number, before) for number in range(len(lengths))]
            after = self._alone(model, self._longest)
            if (before - after).abs().max() > MOST_NOISE * max(1.0, float(before.abs().max())):
                raise ModelRefused(f"{type(model).__name__}: a text's vector depends on the texts before it")
            self.types = self._token_types(model)
            if all(parameter.dtype == torch.float32 for parameter in model.parameters()):
                self.exact, self.noise = self.states, self._padding_noise(model, self.states)
            else:
                self.exact, self.noise = in_float32(model, lambda: self._run_exactly(model)), 0.0
        self.width = self.exact[0].shape[1]

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

    def run_alone(self, model: nn.Module, numbers: Sequence[int]) -> Tensor:
        """Hidden states [T, H] float32 of the texts of these `numbers`, end to end, by the model's own code; every text
        is run alone."""
        with torch.inference_mode():
            return torch.cat([self._alone(model, number) for number in numbers])

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

    def _alone(self, model: Any, number: int) -> Tensor:
        """Hidden states [L, H] float32 of one text."""
        return run(model, self._feeding.alone(self.probes, number))[0].float()

    def _first_run(self, model: Any) -> Tensor:
        """Runs the longest text; with the written-out attention where the default one cannot run at all."""
        try:
            return self._alone(model, self._longest)
        except ModelRefused as refused:
            if self.attention != FUSED:
                raise
            run_by(model, WRITTEN_OUT)
            self.attention, hidden = WRITTEN_OUT, self._alone(model, self._longest)
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

    def _run_exactly(self, model: nn.Module) -> list[Tensor]:
        """Hidden states of all texts by a model whose weights are float32 for now. Compares its attentions, too."""
        exact = [self._alone(model, number) for number in range(len(self.probes.texts))]
        self._compare_attentions(model, exact)
        return exact

    def _padding_noise(self, model: nn.Module, exact: Sequence[Tensor]) -> float:
        """Largest difference of hidden states between the model's own runs: of a text alone, in a padded batch, and
        twice in one batch.

        Rounding grows with length, so the longest text also runs with the model's other attention, where the class has
        two. Texts with a tail are left out: models that treat masked tokens as padding give their tails other hidden
        states in every batch, and this noise would hide real errors.
        """
        numbers, texts = range(self.probes.padded), self.probes.texts
        padded = self._feeding.padded(model, [texts[number] for number in numbers])
        noises = [_distance(padded[number, : len(texts[number])], exact[number]) for number in numbers]
        # An accelerator takes other kernels for other numbers of rows, so that rounding differs for every length.
        drawn = [number for number in self.whole if self.probes.inputs(number) is None]
        twice = numbers if exact[0].device.type == "cpu" else drawn
        noises += [_distance(self._feeding.padded(model, [texts[number]] * 2)[1], exact[number]) for number in twice]
        noises.append(self._compare_attentions(model, exact))
        return max((noise for noise in noises if noise <= MOST_NOISE * _scale(exact)), default=0.0)

    def _compare_attentions(self, model: nn.Module, exact: Sequence[Tensor]) -> float:
        """Runs the longest text with the model's other attention, and gives their distance; 0 where the class has one.

        Sets `notice` where they compute different things.
        """
        other, distance = other_than(model, self.attention), 0.0
        if other is None:
            return distance
        with suppress(ModelRefused), attending_by(model, other):
            distance = _distance(self._alone(model, self._longest), exact[self._longest])
            if not distance <= OTHER_MEANING * _scale(exact):
                self.notice = (
                    f"its {self.attention} attention, which transformers runs for its config by default, gives other "
                    f"hidden states than its {other} one, by up to {distance:.2g}: the default serves"
                )
        return distance


class HeadReference:
    """Logits of some short texts by the model's own class, one text at a time, taken before the model is changed.

    Where the model reads token types, texts have second segments. It also finds which row a classifier reads, the
    first, the last, the mean or every row: the one whose logits agree. So no model family has to be known by name.
    """

    def __init__(self, model: Any, recipe: Recipe, probes: Probes, positions: int, feeding: Feeding) -> None:
        """Runs the texts. `model` is the whole class as loaded, with its own attention; `feeding` is its encoder's."""
        vocabulary = int(model.config.get_text_config().vocab_size)
        self._probes = probes.for_heads(vocabulary, positions, pairs=feeding.types is not None)
        self._feeding, self._recipe, self._name = feeding, recipe, type(model).__name__
        with torch.inference_mode():
            logits = self._run_alone(model)
            self._expected = Expected(exact=in_float32(model, lambda: self._run_alone(model)), rows=logits)

    def check(self, encoder: Encoder, heads: Heads) -> None:
        """Chooses which row a classifier reads. Raises ModelRefused where the head's logits are not the model's."""
        with torch.inference_mode():
            batch = self._batch(encoder)
            hidden = encoder(batch)
            if isinstance(heads.classifier, HeadClassifier):
                self._choose_row(heads.classifier, hidden, batch)
            verdict = exact_logits(logits_of(heads, hidden, batch), self._expected, encoder.dtype)
        verdict.check(f"{self._name} does not classify among other texts as it does alone")

    def check_rounded(self, encoder: Encoder, heads: Heads) -> str:
        """How close logits of rounded layers are; `check` must have chosen the row before.

        Raises ModelRefused where they are too far off.
        """
        with torch.inference_mode():
            batch = self._batch(encoder)
            verdict = rounded_logits(logits_of(heads, encoder(batch), batch), self._expected)
        verdict.check("rounded layers change its logits too much")
        return verdict.figures

    def _batch(self, encoder: Encoder) -> RaggedBatch:
        """All texts as one batch."""
        return self._probes.batch(range(len(self._probes.texts)), encoder)

    def _choose_row(self, classifier: HeadClassifier, hidden: Tensor, batch: RaggedBatch) -> None:
        """Sets the pooling of a classifier to the one whose logits err least."""
        errors = {}
        for pooling in ROWS_READ:
            classifier.pooling = pooling
            errors[pooling] = logit_error(classifier(hidden, batch), self._expected)
        classifier.pooling = min(errors, key=errors.__getitem__)  # in half precision several may pass

    def _run_alone(self, model: Any) -> Tensor:
        """Logits [S or T, labels] float32 of all texts; every text is run alone."""
        fed = [self._feeding.alone(self._probes, number) for number in range(len(self._probes.texts))]
        return torch.cat([self._head_logits(model(**accepted(model, inputs)).logits.float()) for inputs in fed])

    def _head_logits(self, logits: Tensor) -> Tensor:
        """Logits that the head should give for a text, from those that the model's own class gives for it."""
        classifier = self._recipe.classifier
        if self._recipe.weights_of == "sequence-classification":
            return logits
        if classifier is None or classifier.yes_no is None:
            return logits[0]
        yes, no = classifier.yes_no
        last = logits[:, -1]
        return last[:, [yes]] if no is None else last[:, [yes]] - last[:, [no]]


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
    """Largest difference of two numbers in the same place."""
    return float((hidden.float() - exact).abs().max())


def _scale(exact: Sequence[Tensor]) -> float:
    """The size of hidden states by which distances are judged."""
    return max(1.0, size_of(torch.cat([*exact])))


def _check_attention_calls(encoder: PackedEncoder, calls: int) -> None:
    """Raises ModelRefused unless every layer attended through the packed attention once."""
    layers = int(getattr(encoder.model.config, "num_hidden_layers", calls))
    if calls != layers:
        raise ModelRefused(f"it attended {calls} times through the packed attention, its config says {layers} layers")
