"""The gate of heads: logits on packed rows must equal those of the unmodified class, run one text at a time.

It also finds which row a classifier reads (the first, the last, the mean, every row): the row whose logits agree. So no
model family has to be known by name.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.heads.heads import LAST_REAL, LATE, HeadClassifier, Heads, SpladeHead
from gpu_worker.model.verify.feeding import Feeding, accepted
from gpu_worker.model.verify.probes import Probes, head_texts
from gpu_worker.model.verify.widened import in_float32
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.token_types import Counts
from gpu_worker.repository.recipe import Recipe
from shared.errors import ModelRefused

TOLERANCE = 1e-4
"""Largest error of float32 logits, in root mean square, relative to them, or absolute where they are smaller than 1."""
ROWS_READ = ("cls", "lasttoken", LAST_REAL, "mean", LATE)
"""Poolings that a ForSequenceClassification may use."""
HALF_RATIO = 3.0
"""Largest error in half precision, relative to the error of the model's own run in half precision.

It is generous, since few numbers are compared here and the encoder was compared before. A wrong row errs by much more.
"""


class HeadReference:
    """Logits of some short texts by the model's own class, taken before the model is changed.

    `logits` are in the model's number format, `exact` in float32. Where the model reads token types, texts have second
    segments.
    """

    def __init__(self, model: Any, recipe: Recipe, probes: Probes, positions: int, feeding: Feeding) -> None:
        """Runs the texts. `model` is the whole class as loaded, with its own attention; `feeding` is its encoder's."""
        vocabulary = int(model.config.get_text_config().vocab_size)
        texts = [*probes.short(), *head_texts(vocabulary, positions)]
        paired = feeding.types is not None
        self.texts = [*texts, *(inputs.ids for inputs in probes.written)]
        self.second_segments = [len(text) // 2 if paired else 0 for text in texts]
        self.second_segments += [inputs.second_segment for inputs in probes.written]
        unwritten = [None] * len(texts)
        self._inputs: list[Mapping[str, Counts] | None] = [*unwritten, *(text.inputs for text in probes.written)]
        self._feeding = feeding
        self._recipe, self._name = recipe, type(model).__name__
        with torch.inference_mode():
            self.logits = self._run_one_by_one(model)
            self.exact = in_float32(model, lambda: self._run_one_by_one(model))

    def check(self, encoder: Encoder, heads: Heads) -> None:
        """Chooses which row a classifier reads. Raises ModelRefused where the head's logits are not the model's."""
        with torch.inference_mode():
            batch = self._batch(encoder)
            hidden = encoder(batch)
            if isinstance(heads.classifier, HeadClassifier):
                self._choose_row(heads.classifier, hidden, batch)
            verdict = self._compare(logits_of(heads, hidden, batch), encoder.dtype)
        if verdict:
            raise ModelRefused(f"{self._name} does not classify among other texts as it does alone: {verdict}")

    def check_close(self, encoder: Encoder, heads: Heads, least: float) -> float:
        """Cosine of all logits to those of the model's own half precision; `check` must have chosen the row before.

        Raises ModelRefused where the cosine is below `least`.
        """
        with torch.inference_mode():
            batch = self._batch(encoder)
            logits = logits_of(heads, encoder(batch), batch).float()
        cosine = float(torch.cosine_similarity(logits.flatten(), self.logits.flatten(), dim=0))
        if not cosine >= least:
            raise ModelRefused(f"rounded layers change its logits too much: cosine {cosine:.4f}, wanted is {least}")
        return cosine

    def _batch(self, encoder: Encoder) -> RaggedBatch:
        """All texts as one batch."""
        return RaggedBatch.pack(
            self.texts,
            encoder.device,
            encoder.uncounted,
            types=encoder.token_types,
            second_segments=self.second_segments,
        )

    def _choose_row(self, classifier: HeadClassifier, hidden: Tensor, batch: RaggedBatch) -> None:
        """Sets the pooling of a classifier to the one whose logits err least."""
        errors = {}
        for pooling in ROWS_READ:
            classifier.pooling = pooling
            errors[pooling] = self._error(classifier(hidden, batch))
        classifier.pooling = min(errors, key=errors.__getitem__)  # in half precision several may pass

    def _error(self, logits: Tensor) -> float:
        """Root mean square error of logits; infinite where their shape is wrong or one is not finite."""
        if logits.shape != self.exact.shape or not torch.isfinite(logits).all():
            return float("inf")
        return float((logits.float() - self.exact).pow(2).mean().sqrt())

    def _compare(self, logits: Tensor, dtype: torch.dtype) -> str | None:
        """Why `logits` [S or T, labels] are not the model's, or None where they are."""
        if logits.shape != self.exact.shape or not torch.isfinite(logits).all():
            return f"its head gives {list(logits.shape)} finite numbers, wanted are {list(self.exact.shape)}"
        measured = (logits.float() - self.exact, self.logits - self.exact, self.exact)
        error, error_of_model, scale = (float(numbers.pow(2).mean().sqrt()) for numbers in measured)
        allowed = TOLERANCE * max(1.0, scale) if dtype == torch.float32 else HALF_RATIO * error_of_model + scale / 256
        return None if error <= allowed else f"its head's logits differ by {error:.2g}, allowed is {allowed:.2g}"

    def _run_one_by_one(self, model: Any) -> Tensor:
        """Logits [S or T, labels] float32 of all texts; every text is run alone."""
        device = next(model.parameters()).device
        rows = []
        for text, second_segment, text_inputs in zip(self.texts, self.second_segments, self._inputs, strict=True):
            if text_inputs is None:
                inputs = self._feeding.inputs([text], [0], [second_segment])
            else:
                inputs = {name: values[None] for name, values in text_inputs.items()}
            tensors = {name: torch.from_numpy(values).to(device) for name, values in inputs.items()}
            rows.append(self._head_logits(model(**accepted(model, tensors)).logits.float()))
        return torch.cat(rows)

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
