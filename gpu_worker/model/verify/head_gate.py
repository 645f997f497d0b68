"""The gate of heads: logits on packed rows must equal those of the unmodified class, one text at a time.

It also tells which row a classifier reads (the first, the last, the mean, each of them): the one whose logits agree. So
no family has to be known by name.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.heads.classifier import LAST_REAL, LATE, HeadClassifier
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse import SpladeHead
from gpu_worker.model.verify.feeding import Feeding, accepted
from gpu_worker.model.verify.probes import Probes, head_texts
from gpu_worker.model.verify.widened import in_float32
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.token_types import Counts
from gpu_worker.repository.recipe import Recipe
from shared.errors import ModelRefused

TOLERANCE = 1e-4
ROWS_READ = ("cls", "lasttoken", LAST_REAL, "mean", LATE)
"""What a ForSequenceClassification may look at."""
HALF_RATIO = 3.0
"""Few numbers are compared here, and the encoder was judged before: a wrong row is off by much more."""


class HeadReference:
    """Logits of a few random texts, taken before anything is changed. Texts have second segments where those count."""

    def __init__(self, model: Any, recipe: Recipe, probes: Probes, positions: int, feeding: Feeding) -> None:
        """`model` is the whole class, as loaded, with its own attention; `feeding` is its encoder's."""
        vocabulary = int(model.config.get_text_config().vocab_size)
        texts = [*probes.short(), *head_texts(vocabulary, positions)]
        paired = feeding.types is not None
        self.texts = [*texts, *(each.ids for each in probes.written)]
        self.second_segments = [len(text) // 2 if paired else 0 for text in texts]
        self.second_segments += [each.second_segment for each in probes.written]
        nothing = [None] * len(texts)
        self._written: list[Mapping[str, Counts] | None] = [*nothing, *(each.inputs for each in probes.written)]
        self._feeding = feeding
        self._recipe, self._name = recipe, type(model).__name__
        with torch.inference_mode():
            self.own = self._one_by_one(model)
            self.exact = in_float32(model, lambda: self._one_by_one(model))

    def check(self, encoder: Encoder, heads: Heads) -> None:
        """Settles which row a classifier reads. Raises ModelRefused where the head's logits are not the model's."""
        with torch.inference_mode():
            batch = self._batch(encoder)
            hidden = encoder(batch)
            if isinstance(heads.classifier, HeadClassifier):
                self._settle(heads.classifier, hidden, batch)
            verdict = self._compare(logits_of(heads, hidden, batch), encoder.dtype)
        if verdict:
            raise ModelRefused(f"{self._name} does not classify among other texts as it does alone: {verdict}")

    def check_close(self, encoder: Encoder, heads: Heads, least: float) -> float:
        """The cosine of all logits to those of the model's own half precision, once `check` has settled the row.

        Raises ModelRefused where it is below `least`.
        """
        with torch.inference_mode():
            batch = self._batch(encoder)
            logits = logits_of(heads, encoder(batch), batch).float()
            cosine = float(torch.cosine_similarity(logits.flatten(), self.own.flatten(), dim=0))
        if not cosine >= least:
            raise ModelRefused(f"rounded layers change its logits too much: cosine {cosine:.4f}, wanted is {least}")
        return cosine

    def _batch(self, encoder: Encoder) -> RaggedBatch:
        return RaggedBatch.pack(
            self.texts,
            encoder.device,
            encoder.uncounted,
            types=encoder.token_types,
            second_segments=self.second_segments,
        )

    def _settle(self, classifier: HeadClassifier, hidden: Tensor, batch: RaggedBatch) -> None:
        errors = {}
        for pooling in ROWS_READ:
            classifier.pooling = pooling
            errors[pooling] = self._error(classifier(hidden, batch))
        classifier.pooling = min(errors, key=errors.__getitem__)  # in half precision several may be near enough

    def _error(self, logits: Tensor) -> float:
        """Root mean square; infinite for what is no answer of this model."""
        if logits.shape != self.exact.shape or not torch.isfinite(logits).all():
            return float("inf")
        return float((logits.float() - self.exact).pow(2).mean().sqrt())

    def _compare(self, logits: Tensor, dtype: torch.dtype) -> str | None:
        """Why `logits` [S or T, labels] are not the model's, or None."""
        if logits.shape != self.exact.shape or not torch.isfinite(logits).all():
            return f"its head gives {list(logits.shape)} finite numbers, wanted are {list(self.exact.shape)}"
        errors = (logits.float() - self.exact, self.own - self.exact, self.exact)
        ours, theirs, scale = (float(each.pow(2).mean().sqrt()) for each in errors)
        allowed = TOLERANCE * max(1.0, scale) if dtype == torch.float32 else HALF_RATIO * theirs + scale / 256
        return None if ours <= allowed else f"its head's logits differ by {ours:.2g}, allowed is {allowed:.2g}"

    def _one_by_one(self, model: Any) -> Tensor:
        device = next(model.parameters()).device
        rows = []
        for text, second, written in zip(self.texts, self.second_segments, self._written, strict=True):
            if written is None:
                inputs = self._feeding.inputs([text], [0], [second])
            else:
                inputs = {name: each[None] for name, each in written.items()}
            given = {name: torch.from_numpy(each).to(device) for name, each in inputs.items()}
            rows.append(self._of_one(model(**accepted(model, given)).logits.float()))
        return torch.cat(rows)

    def _of_one(self, logits: Tensor) -> Tensor:
        """What the head should give of one text's logits."""
        classifier = self._recipe.classifier
        if self._recipe.weights_of == "sequence-classification":
            return logits
        if classifier is None or classifier.yes_no is None:
            return logits[0]
        yes, no = classifier.yes_no
        last = logits[:, -1]
        return last[:, [yes]] if no is None else last[:, [yes]] - last[:, [no]]


def logits_of(heads: Heads, hidden: Tensor, batch: RaggedBatch) -> Tensor:
    """[S or T, labels] of the head that gives logits."""
    logits: Tensor
    if isinstance(heads.sparse, SpladeHead):
        logits = heads.sparse.head(hidden[None])[0]
    elif heads.token_classifier is not None:
        logits = heads.token_classifier(hidden)
    else:
        assert heads.classifier is not None
        logits = heads.classifier(hidden, batch)
    return logits
