"""Rerank, Score and MaxSim: queries and documents -> requests, and replies -> scores. No I/O.

A score depends on its query and its document alone, so documents may be sent in several requests, and a matrix of
scores may be computed block by block. Requests say so (`part_of_list`), and a listwise reranker refuses them: then all
documents are sent in one.
"""

import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np

from selvage.errors import InvalidInput
from selvage.messages import vectors
from selvage.messages.inputs import ENTRY_LETTERS, InputPart, Operation, runs
from selvage.results import Array, RankedDocument, TokenMatch
from selvage.v1 import ranking_pb2, vectors_pb2

DOCUMENTS, LETTERS = 1024, 1024 * 1024
"""Most documents and letters of one Rerank. Parts are large, because each computes the query again."""
SIDE, SIDE_LETTERS = 2048, 1024 * 1024
"""Most texts, and letters, of either side of one Score. Blocks are large, because each computes both sides again."""
ARRAYS, QUERY_BYTES, DOCUMENT_BYTES = 1024, 4 * 1024 * 1024, 8 * 1024 * 1024
"""Most arrays of either side of one MaxSim, and most bytes: each block of documents sends the queries again."""
LETTER_BYTES = 4
"""Most bytes of a letter in a message, so that no request of several entries has over 16 MiB."""


class Rerank(Operation[list[RankedDocument]]):
    """The requests and replies of one `rerank`. Replies carry no documents, because the caller has them."""

    def __init__(
        self,
        template: ranking_pb2.RerankRequest,
        documents: Sequence[str],
        *,
        return_documents: bool,
        seconds: float | None,
        progress: bool,
    ) -> None:
        super().__init__(seconds=seconds, progress=progress)
        self._template, self._documents, self._return = template, documents, return_documents
        self._results: list[tuple[float, RankedDocument]] = []

    @property
    def size(self) -> int:
        return len(self._documents)

    def parts(self) -> Iterator[InputPart]:
        sizes = (len(document) + ENTRY_LETTERS for document in self._documents)
        return (InputPart(start=start, stop=stop) for start, stop in runs(sizes, most=DOCUMENTS, room=LETTERS))

    def undivided(self) -> Iterator[InputPart]:
        yield InputPart(start=0, stop=len(self._documents), indivisible=True)

    def message(self, part: InputPart) -> ranking_pb2.RerankRequest:
        documents = self._documents[part.rows]
        message = ranking_pb2.RerankRequest(documents=documents, part_of_list=len(documents) < len(self._documents))
        message.MergeFrom(self._template)
        return message

    def offsets(self, part: InputPart) -> Mapping[str, int]:
        return {"documents": part.start}

    def add_reply(self, part: InputPart, reply: Any) -> None:
        for result in reply.results:
            index = part.start + result.index
            document = self._documents[index] if self._return else None
            matches = tuple(
                TokenMatch(**{field.name: getattr(match, field.name) for field in fields(TokenMatch)})
                for match in result.explanation
            )
            ranked = RankedDocument(index=index, score=result.score, document=document, explanation=matches)
            self._results.append((result.logit if result.HasField("logit") else result.score, ranked))

    def result(self) -> list[RankedDocument]:
        """All documents or the `top_n` best, best first; equal ones in the order of the input."""
        best = [ranked for _, ranked in sorted(self._results, key=lambda result: (-result[0], result[1].index))]
        return best[: self._template.top_n] if self._template.HasField("top_n") else best


class Scores(Operation[Array]):
    """A matrix of scores that comes in blocks, or a column of the scores of pairs that comes in runs.

    `most`: entries of either side of a request. `rooms`: the largest sums of the sizes of its queries, and of its
    documents; the second is also that of pairs.
    """

    most: int
    rooms: tuple[int, int]

    def __init__(
        self,
        template: Any,
        queries: Sequence[Any],
        documents: Sequence[Any],
        *,
        seconds: float | None,
        progress: bool,
    ) -> None:
        """`template`: the request without its texts or arrays. Raises InvalidInput where pairs do not match."""
        super().__init__(seconds=seconds, progress=progress)
        self._template, self._queries, self._documents = template, queries, documents
        self._pairs = template.layout == vectors_pb2.LAYOUT_PAIRS
        left, right = map(self._size, queries), map(self._size, documents)
        if self._pairs:
            if len(queries) != len(documents):
                fault = f"{len(queries)} queries and {len(documents)} documents are no pairs"
                raise InvalidInput(fault, field="documents")
            self._rows = list(runs(map(operator.add, left, right), most=self.most, room=self.rooms[1]))
            self._columns = [(0, 1)]
        else:
            self._rows = list(runs(left, most=self.most, room=self.rooms[0]))
            self._columns = list(runs(right, most=self.most, room=self.rooms[1]))
        self._scores: Array = np.zeros((self._rows[-1][1], self._columns[-1][1]), dtype=np.float32)

    @property
    def size(self) -> int:
        return self._scores.size

    def parts(self) -> Iterator[InputPart]:
        for (start, stop), (left, right) in product(self._rows, self._columns):
            yield InputPart(start=start, stop=stop, left=left, right=right)

    def offsets(self, part: InputPart) -> Mapping[str, int]:
        rows = dict.fromkeys(("queries", "query_texts"), part.start)
        return rows | {"documents": part.start if self._pairs else part.left}

    def add_reply(self, part: InputPart, reply: Any) -> None:
        block = np.array(reply.scores, dtype=np.float32).reshape(reply.rows, reply.columns)
        self._scores[part.rows, part.columns] = block

    def result(self) -> Array:
        return self._scores[:, 0] if self._pairs else self._scores

    def _documents_of(self, part: InputPart) -> Sequence[Any]:
        return self._documents[part.rows if self._pairs else part.columns]

    @abstractmethod
    def _size(self, entry: Any) -> int:
        """What a query or a document adds to the size of a request."""


class Score(Scores):
    """The requests and replies of one `score`."""

    most, rooms = SIDE, (SIDE_LETTERS, SIDE_LETTERS)

    def undivided(self) -> Iterator[InputPart]:
        """As many queries in a part as together read what one part of a `Rerank` has: each reads all documents anew."""
        letters = sum(map(self._size, self._documents))
        most = max(1, DOCUMENTS // len(self._documents))
        for start, stop in runs([letters] * len(self._queries), most=most, room=LETTERS):
            yield InputPart(start=start, stop=stop, right=len(self._documents), whole_columns=True)

    def message(self, part: InputPart) -> ranking_pb2.ScoreRequest:
        documents = self._documents_of(part)
        is_part = not self._pairs and len(documents) < len(self._documents)
        message = ranking_pb2.ScoreRequest(queries=self._queries[part.rows], documents=documents, part_of_list=is_part)
        message.MergeFrom(self._template)
        return message

    def _size(self, entry: Any) -> int:
        return len(entry) + ENTRY_LETTERS


class MaxSim(Scores):
    """The requests and replies of one `max_sim`. `queries` are arrays, or texts."""

    most, rooms = ARRAYS, (QUERY_BYTES, DOCUMENT_BYTES)

    def message(self, part: InputPart) -> ranking_pb2.MaxSimRequest:
        message = ranking_pb2.MaxSimRequest(documents=vectors.to_multi_vectors(self._documents_of(part)))
        message.MergeFrom(self._template)
        queries = self._queries[part.rows]
        if queries and isinstance(queries[0], str):
            message.query_texts.extend(queries)
        else:
            message.queries.CopyFrom(vectors.to_multi_vectors(queries))
        return message

    def _size(self, entry: Any) -> int:
        """The bytes of an array as float32, or the most that a text can have."""
        return len(entry) * LETTER_BYTES if isinstance(entry, str) else int(entry.size) * 4
