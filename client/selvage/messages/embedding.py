"""Embed: texts -> requests, and replies -> arrays. No I/O."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from selvage.errors import Internal
from selvage.messages import vectors
from selvage.messages.inputs import InputPart, Inputs, Operation
from selvage.results import Array, Embeddings
from selvage.v1 import embedding_pb2, model_pb2

TEXTS, LETTERS = 512, 256 * 1024
"""Most texts and letters of one request. A few such requests keep a worker busy; the service takes far larger ones."""
CARD_PART = InputPart(start=0, stop=0)
"""The part whose request is for the model's card: a sparse matrix is as wide as the vocabulary, which the card says."""


class Embed(Operation[Any]):
    """The requests and replies of one `embed`, or of a batch of a stream. Dense rows are copied to their place as they
    come."""

    def __init__(
        self,
        template: embedding_pb2.EmbedRequest,
        inputs: Inputs,
        alone: str,
        *,
        csr: bool = False,
        spans: Sequence[embedding_pb2.Spans] = (),
        place: int = 0,
        seconds: float | None,
        progress: bool = False,
    ) -> None:
        """`template`: the request without its texts. `alone`: the output whose rows are the result, without the axis of
        texts for a single text; empty: all, as `Embeddings`. `csr`: make one matrix of the sparse rows. `spans`: those
        of each text, or none. `place`: of the first text in a stream.

        Raises ImportError where scipy is missing for a matrix.
        """
        if csr:
            from scipy.sparse import csr_array

            self._matrix = csr_array
        super().__init__(seconds=seconds, progress=progress)
        self._template, self._inputs, self._alone, self._csr = template, inputs, alone, csr
        self._spans, self._place = spans, place
        counts = [len(bounds.starts) for bounds in spans] or [1] * len(inputs)
        self._row_starts = [0, *accumulate(counts)]  # of the dense rows of each text
        self._replies: dict[int, Any] = {}
        self._dense: Array | None = None
        self._vocabulary = 0

    @property
    def size(self) -> int:
        return len(self._inputs)

    def parts(self) -> Iterator[InputPart]:
        if self._csr:
            yield CARD_PART
        if self._template.late_chunking:  # the texts are one document
            yield InputPart(start=0, stop=self.size, indivisible=True)
            return
        prompt = len(self._template.prompt)
        yield from self._inputs.parts(most=TEXTS, letters=LETTERS, common=prompt)

    def message(self, part: InputPart) -> Any:
        if part is CARD_PART:
            return model_pb2.GetModelRequest(model=self._template.model)
        message = embedding_pb2.EmbedRequest()
        message.CopyFrom(self._template)
        self._inputs.add_to(message, part.rows)
        message.spans.extend(self._spans[part.rows])
        return message

    def offsets(self, part: InputPart) -> Mapping[str, int]:
        return dict.fromkeys(("texts", "tokenized", "spans"), self._place + part.start)

    def add_reply(self, part: InputPart, reply: Any) -> None:
        if part is CARD_PART:
            self._vocabulary = reply.card.vocabulary_size
            return
        if reply.HasField("dense"):
            rows, place = vectors.rows(reply.dense), slice(self._row_starts[part.start], self._row_starts[part.stop])
            if len(rows) != place.stop - place.start:  # numpy would copy a single row to all places
                raise Internal(f"the reply has {len(rows)} dense rows, {place.stop - place.start} were asked for")
            if self._dense is None:  # all rows have one width: they share one memory, and each is copied once
                self._dense = np.empty((self._row_starts[-1], rows.shape[1]), dtype=rows.dtype)
            self._dense[place] = rows
            reply.dense.ClearField("data")
        if self._alone and not reply.HasField(self._alone):
            raise Internal(f"the reply has no {self._alone} results")
        for name in ("sparse", "multi_vector"):  # else the results of later texts would be those of others
            if reply.HasField(name) and len(getattr(reply, name).lengths) != part.size:
                raise Internal(f"the reply has {name} results of other texts than were sent")
        self._replies[part.start] = reply

    def result(self) -> Any:
        """`Embeddings`, or the rows of one output: dense ones of spans are a list with an array for each text."""
        embeddings = self._embeddings()
        if not self._alone:
            return embeddings
        rows = getattr(embeddings, self._alone)
        if self._alone == "dense" and self._spans:
            rows = np.split(rows, self._row_starts[1:-1])
        is_matrix = self._alone == "sparse" and self._csr  # it stays a matrix of one row for a single text
        return rows[0] if self._inputs.single and not is_matrix else rows

    def _embeddings(self) -> Embeddings:
        replies = [self._replies[start] for start in sorted(self._replies)]
        multi_vectors = [reply.multi_vector for reply in replies if reply.HasField("multi_vector")]
        scaled = multi_vectors if any(message.scales for message in multi_vectors) else []
        with_ids = multi_vectors if any(message.token_ids for message in multi_vectors) else []
        counts = [count for reply in replies for count in reply.usage.token_counts]
        return Embeddings(
            model=replies[0].model,
            token_counts=np.array(counts, dtype=np.int32),
            truncated=np.array([cut for reply in replies for cut in reply.usage.truncated], dtype=bool),
            dense=self._dense,
            dense_scales=_scales([reply.dense for reply in replies]) if self._dense is not None else None,
            sparse=self._sparse([reply.sparse for reply in replies]) if replies[0].HasField("sparse") else None,
            multi_vector=_by_text(multi_vectors, lambda message: vectors.rows(message).copy()),
            multi_vector_scales=_by_text(scaled, lambda message: vectors.scales(message).copy()),
            token_ids=_by_text(with_ids, lambda message: np.array(message.token_ids, dtype=np.int32)),
        )

    def _sparse(self, messages: Sequence[Any]) -> Any:
        """A dict for each text, or one matrix."""
        pairs = [pair for message in messages for pair in vectors.sparse(message)]
        if not self._csr:
            return [dict(zip(ids.tolist(), weights.tolist(), strict=True)) for ids, weights in pairs]
        starts = np.cumsum([0, *(len(ids) for ids, _ in pairs)])
        ids, weights = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        return self._matrix((weights, ids, starts), shape=(len(pairs), self._vocabulary))


def _scales(messages: Sequence[Any]) -> Array | None:
    scales = np.concatenate([vectors.scales(message) for message in messages])
    return scales if len(scales) else None


def _by_text(messages: Sequence[Any], array: Callable[[Any], Array]) -> list[Array] | None:
    """An array of each of the MultiVectors, cut into the rows of each text; None where there are none."""
    texts = [vectors.split_by_lengths(array(message), message.lengths) for message in messages]
    return [rows for rows_of_message in texts for rows in rows_of_message] if messages else None
