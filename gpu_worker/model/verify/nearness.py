"""The gate of layers that compute float32 otherwise: how near a model's results stay to its own float32.

The exact gate comes first, with float32's own products, so a model that fails here is served by those.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse import LexicalHead, SpladeHead
from gpu_worker.model.verify.gate import ProbeStates, Reference, compare
from gpu_worker.model.verify.head_gate import HeadReference
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused

VECTOR, ROW, SCORE = 5e-6, 1e-5, 5e-5
"""Most that a number of a unit-length vector may be off, one of another row relative to the row's largest, and a score:
half of what README promises."""
QUERY = 32
"""Most tokens of a text that is taken for a query of late interaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """How far results are off at most: `vectors` of unit length, `rows` relative to their largest number, `scores`."""

    vectors: float = 0.0
    rows: float = 0.0
    scores: float = 0.0

    @classmethod
    def of_rows(cls, rows: Tensor, exact: Tensor) -> "Nearness":
        """Compares rows [N, H] as they are, and of unit length."""
        largest = exact.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        return cls(
            vectors=_largest(F.normalize(rows, dim=1) - F.normalize(exact, dim=1)),
            rows=_largest((rows - exact).abs().amax(dim=1) / largest),
        )

    @classmethod
    def of_scores(cls, scores: Tensor, exact: Tensor) -> "Nearness":
        """Compares scores of any shape."""
        return cls(scores=_largest(scores - exact))

    def __or__(self, other: "Nearness") -> "Nearness":
        """The larger of each two differences."""
        return Nearness(
            vectors=max(self.vectors, other.vectors),
            rows=max(self.rows, other.rows),
            scores=max(self.scores, other.scores),
        )

    @property
    def near_enough(self) -> bool:
        """Whether all differences are within half of what README promises."""
        return self.vectors <= VECTOR and self.rows <= ROW and self.scores <= SCORE

    def __str__(self) -> str:
        return (
            f"unit-length vectors within {self.vectors:.1e}, other rows within {self.rows:.1e} of their largest "
            f"number, scores within {self.scores:.1e}"
        )


class NearnessGate:
    """Compares what an encoder and its heads compute with the model's own float32 run of each text alone."""

    def __init__(self, reference: Reference, head_reference: HeadReference | None, heads: Heads) -> None:
        """`head_reference`: None where no head of the model has logits. It must have chosen a classifier's row."""
        self._reference, self._head_reference, self._heads = reference, head_reference, heads

    def check(self, encoder: Encoder) -> Nearness:
        """Measures how near the results are. Raises ModelRefused, with figures, where they are not near enough."""
        states = self._reference.among_others(encoder)
        with torch.inference_mode():
            near = Nearness.of_rows(states.hidden, states.exact) | self._of_vectors(encoder, states)
            if self._head_reference is not None:
                near |= self._of_logits(self._head_reference, encoder)
        if not near.near_enough:
            raise ModelRefused(f"{near}; wanted are {VECTOR:.0e}, {ROW:.0e} and {SCORE:.0e}")
        noise = self._reference.padding_noise
        verdict = compare(states.hidden, states.exact, states.reference, noise, encoder.dtype)
        if verdict:
            raise ModelRefused(verdict)
        return near

    def _of_vectors(self, encoder: Encoder, states: ProbeStates) -> Nearness:
        """Compares the vectors, and scores of texts against texts, that heads make of hidden states."""
        heads, near, both = self._heads, Nearness(), (states.hidden, states.exact)
        if heads.dense is not None:
            texts = [self._reference.probes.texts[number] for number in states.numbers]
            batch = RaggedBatch.pack(texts, encoder.device, encoder.uncounted)
            rows, exact = (heads.dense(hidden, batch) for hidden in both)
            near |= Nearness.of_rows(rows, exact) | Nearness.of_scores(_cosines(rows), _cosines(exact))
        if heads.multi_vector is not None:
            rows, exact = (heads.multi_vector(hidden).float() for hidden in both)
            sums = (_late_scores(tokens, states.lengths) for tokens in (rows, exact))
            near |= Nearness.of_rows(rows, exact) | Nearness.of_scores(*sums)
        if isinstance(heads.sparse, LexicalHead):
            near |= Nearness.of_scores(*(heads.sparse(hidden) for hidden in both))
        return near

    def _of_logits(self, reference: HeadReference, encoder: Encoder) -> Nearness:
        """Compares logits: those of a vocabulary as rows, those of labels as scores."""
        logits = reference.among_others(encoder, self._heads)
        if isinstance(self._heads.sparse, SpladeHead):
            return Nearness.of_rows(logits, reference.exact)
        return Nearness.of_scores(logits, reference.exact)


def _cosines(rows: Tensor) -> Tensor:
    """Cosines [N, N] of all rows with all rows."""
    unit = F.normalize(rows, dim=1)
    return unit @ unit.T


def _late_scores(rows: Tensor, lengths: list[int]) -> Tensor:
    """MaxSim of short texts, as queries, with all texts: rows [T, W] of texts of these lengths, end to end."""
    texts = F.normalize(rows, dim=1).split(lengths)
    queries = [text for text in texts if len(text) <= QUERY]
    return torch.stack([(query @ text.T).amax(dim=1).sum() for query in queries for text in texts])


def _largest(differences: Tensor) -> float:
    """The largest size of a difference; infinite where one is no number."""
    return float(differences.abs().max().nan_to_num(nan=float("inf")))
