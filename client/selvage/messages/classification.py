"""Classify and ClassifyTokens: texts and options -> requests, and replies -> scores. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from selvage.errors import InvalidInput
from selvage.messages.embedding import LETTERS, TEXTS
from selvage.messages.inputs import Inputs
from selvage.messages.parts import InputPart
from selvage.messages.vectors import split_by_lengths
from selvage.results import Classes, TokenClasses
from selvage.v1 import classification_pb2


class Classify:
    """The requests and replies of one `classify`."""

    def __init__(
        self,
        template: classification_pb2.ClassifyRequest,
        inputs: Inputs,
        pairs: Sequence[str],
        *,
        seconds: float | None,
        progress: bool,
    ) -> None:
        """`pairs`: the second text of each pair, as many as `inputs`; or none. Raises InvalidInput."""
        if pairs and len(pairs) != len(inputs):
            raise InvalidInput(f"there are {len(inputs)} texts and {len(pairs)} text_pairs", field="text_pairs")
        self.seconds, self.progress = seconds, progress
        self._template, self._inputs, self._pairs = template, inputs, pairs
        self._replies: dict[int, Any] = {}

    @property
    def size(self) -> int:
        return len(self._inputs)

    def parts(self) -> Iterator[InputPart]:
        prompt = len(self._template.prompt)
        yield from self._inputs.parts(most=TEXTS, letters=LETTERS, common=prompt, pairs=self._pairs)

    def message(self, part: InputPart) -> classification_pb2.ClassifyRequest:
        message = classification_pb2.ClassifyRequest(
            texts=self._inputs.entries[part.rows], text_pairs=self._pairs[part.rows]
        )
        message.MergeFrom(self._template)
        return message

    def offsets(self, part: InputPart) -> Mapping[str, int]:
        return {"texts": part.start, "text_pairs": part.start}

    def add_reply(self, part: InputPart, reply: Any) -> None:
        self._replies[part.start] = reply

    def result(self) -> Classes:
        replies = [self._replies[start] for start in sorted(self._replies)]
        labels = tuple(replies[0].labels)
        scores = np.concatenate([np.array(reply.scores, dtype=np.float32) for reply in replies])
        scores = scores.reshape(-1, len(labels))
        return Classes(labels=labels, scores=scores[0] if self._inputs.single else scores)


class ClassifyTokens:
    """The requests and replies of one `classify_tokens`."""

    def __init__(
        self,
        template: classification_pb2.ClassifyTokensRequest,
        inputs: Inputs,
        *,
        seconds: float | None,
        progress: bool,
    ) -> None:
        self.seconds, self.progress = seconds, progress
        self._template, self._inputs = template, inputs
        self._results: dict[int, list[TokenClasses]] = {}

    @property
    def size(self) -> int:
        return len(self._inputs)

    def parts(self) -> Iterator[InputPart]:
        yield from self._inputs.parts(most=TEXTS, letters=LETTERS, common=len(self._template.prompt))

    def message(self, part: InputPart) -> classification_pb2.ClassifyTokensRequest:
        message = classification_pb2.ClassifyTokensRequest(texts=self._inputs.entries[part.rows])
        message.MergeFrom(self._template)
        return message

    def offsets(self, part: InputPart) -> Mapping[str, int]:
        return {"texts": part.start}

    def add_reply(self, part: InputPart, reply: Any) -> None:
        labels, lengths = tuple(reply.labels), reply.lengths
        scores = np.array(reply.scores, dtype=np.float32).reshape(-1, len(labels))
        integers = [np.array(column, dtype=np.int32) for column in (reply.token_ids, reply.starts, reply.ends)]
        texts = zip(*(split_by_lengths(column, lengths) for column in (scores, *integers)), strict=True)
        self._results[part.start] = [
            TokenClasses(labels=labels, scores=scores, token_ids=ids, starts=starts, ends=ends)
            for scores, ids, starts, ends in texts
        ]

    def result(self) -> Any:
        results = [result for start in sorted(self._results) for result in self._results[start]]
        return results[0] if self._inputs.single else results
