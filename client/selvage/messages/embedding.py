"""Embed: what a caller asks for <-> messages, and replies as arrays. No I/O; both clients have `embed` as a method."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from selvage.messages import enums, vectors
from selvage.messages.inputs import Inputs, given
from selvage.messages.parts import InputPart
from selvage.results import Array, Embeddings
from selvage.v1 import embedding_pb2, model_pb2, vectors_pb2

TEXTS, LETTERS = 512, 256 * 1024
"""Of one request at most. A few such requests keep a worker busy, and far larger ones are taken."""
CARD = InputPart(start=0, stop=0)
"""Asks for the model's card instead: a matrix is as wide as the vocabulary."""


class Template:
    """An EmbedRequest but for its texts."""

    def __init__(
        self,
        *,
        model: str,
        outputs: Sequence[str],
        input_type: str | None,
        prompt: str | None,
        prompt_name: str | None,
        dimensions: int | None,
        normalize: bool | None,
        data_type: str,
        truncate: bool | None,
        truncation_side: str | None,
        max_tokens: int | None,
        sparse_top_k: int | None,
        return_token_ids: bool,
        pool_factor: float | None,
        protected_tokens: int | None,
    ) -> None:
        """Raises InvalidInput for a word that there is not."""
        self.message = embedding_pb2.EmbedRequest(
            model=model,
            outputs=[enums.number(vectors_pb2.OutputKind, each, "output") for each in outputs],
            input_type=enums.number_or_none(vectors_pb2.InputType, input_type, "input_type"),
            **given(prompt=prompt, prompt_name=prompt_name, normalize=normalize, truncate=truncate),
            dimensions=dimensions,
            data_type=enums.number(vectors_pb2.DataType, data_type, "data_type"),
            truncation_side=enums.number_or_none(vectors_pb2.TruncationSide, truncation_side, "truncation_side"),
            max_tokens=max_tokens,
            sparse_top_k=sparse_top_k,
            return_token_ids=return_token_ids,
            pool_factor=pool_factor,
            protected_tokens=protected_tokens,
        )

    def request(self, inputs: Inputs, rows: slice) -> embedding_pb2.EmbedRequest:
        """For some of the texts."""
        message = embedding_pb2.EmbedRequest()
        message.CopyFrom(self.message)
        inputs.put(message, rows)
        return message


class Embed:
    """All requests and replies of one `embed`. Rows are put where they belong as they come."""

    def __init__(self, template: Template, inputs: Inputs, *, csr: bool, seconds: float | None, progress: bool) -> None:
        """`csr`: sparse rows as one matrix. Raises ImportError where there is no scipy for it."""
        if csr:
            from scipy.sparse import csr_array

            self._matrix = csr_array
        self.seconds, self.progress = seconds, progress
        self._template, self._inputs, self._csr = template, inputs, csr
        self._replies: dict[int, Any] = {}
        self._dense: Array | None = None
        self._model, self._vocabulary = "", 0

    @property
    def size(self) -> int:
        return len(self._inputs)

    def parts(self) -> Iterator[InputPart]:
        if self._csr:
            yield CARD
        prompt = len(self._template.message.prompt)
        yield from self._inputs.parts(most=TEXTS, letters=LETTERS, common=prompt)

    def message(self, part: InputPart) -> Any:
        if part is CARD:
            return model_pb2.GetModelRequest(model=self._template.message.model)
        return self._template.request(self._inputs, part.rows)

    def places(self, part: InputPart) -> Mapping[str, int]:
        return {"texts": part.start, "tokenized": part.start}

    def take(self, part: InputPart, reply: Any) -> None:
        if part is CARD:
            self._vocabulary = reply.card.vocabulary_size
            return
        if reply.HasField("dense"):
            rows = vectors.rows(reply.dense)
            if self._dense is None:  # all rows have one width: one memory for all, and each is copied once
                self._dense = np.empty((self.size, rows.shape[1]), dtype=rows.dtype)
            self._dense[part.rows] = rows
            reply.dense.ClearField("data")
        self._replies[part.start] = reply

    def result(self) -> Embeddings:
        replies = [self._replies[start] for start in sorted(self._replies)]
        multi = [each.multi_vector for each in replies if each.HasField("multi_vector")]
        counts = [count for each in replies for count in each.usage.token_counts]
        return Embeddings(
            model=replies[0].model,
            token_counts=np.array(counts, dtype=np.int32),
            truncated=np.array([cut for each in replies for cut in each.usage.truncated], dtype=bool),
            dense=self._dense,
            dense_scales=_scales([each.dense for each in replies]) if self._dense is not None else None,
            sparse=self._sparse([each.sparse for each in replies]) if replies[0].HasField("sparse") else None,
            multi_vector=[rows for each in multi for rows in vectors.multi_vectors(each)] if multi else None,
            multi_vector_scales=_parted_scales(multi),
            token_ids=_token_ids(multi),
        )

    def _sparse(self, messages: Sequence[Any]) -> Any:
        pairs = [pair for each in messages for pair in vectors.sparse(each)]
        if not self._csr:
            return [dict(zip(ids.tolist(), weights.tolist(), strict=True)) for ids, weights in pairs]
        starts = np.cumsum([0, *(len(ids) for ids, _ in pairs)])
        ids, weights = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        return self._matrix((weights, ids, starts), shape=(len(pairs), self._vocabulary))


class One:
    """The one output that was asked for by its name; of a single text without the axis of texts."""

    def __init__(self, embed: Embed, output: str, *, single: bool) -> None:
        self.seconds, self.progress = embed.seconds, embed.progress
        self.parts, self.message, self.take, self.places = embed.parts, embed.message, embed.take, embed.places
        self._embed, self._output, self._single = embed, output, single

    @property
    def size(self) -> int:
        return self._embed.size

    def result(self) -> Any:
        found = getattr(self._embed.result(), self._output)
        return found[0] if self._single and not _is_matrix(found) else found


def one_of(reply: embedding_pb2.EmbedResponse, output: str) -> list[Any]:
    """What a reply holds of one output, text by text."""
    if output == "dense":
        return list(vectors.rows(reply.dense).copy())
    if output == "multi_vector":
        return vectors.multi_vectors(reply.multi_vector)
    return [dict(zip(ids.tolist(), weights.tolist(), strict=True)) for ids, weights in vectors.sparse(reply.sparse)]


def _is_matrix(found: Any) -> bool:
    """Whether it is scipy's: a single text of it stays a matrix of one row."""
    return hasattr(found, "tocsr")


def _scales(messages: Sequence[Any]) -> Array | None:
    found = np.concatenate([vectors.scales(each) for each in messages])
    return found if len(found) else None


def _parted_scales(messages: Sequence[Any]) -> list[Array] | None:
    if not any(each.scales for each in messages):
        return None
    return [part for each in messages for part in vectors.parted(vectors.scales(each).copy(), each.lengths)]


def _token_ids(messages: Sequence[Any]) -> list[Array] | None:
    if not any(each.token_ids for each in messages):
        return None
    return [
        part for each in messages for part in vectors.parted(np.array(each.token_ids, dtype=np.int32), each.lengths)
    ]
