"""Classify, ClassifyTokens, Tokenize and Detokenize: texts -> requests, and replies -> a result a text. No I/O."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from selvage.errors import InvalidInput
from selvage.messages.embedding import LETTERS, TEXTS
from selvage.messages.inputs import InputPart, Inputs, Operation
from selvage.messages.vectors import split_by_lengths
from selvage.results import Classes, TextTokens, TokenClasses


class TextResults(Operation[Any]):
    """The requests and replies of one call whose reply has a result for each text, the same for a text in any part."""

    def __init__(
        self, template: Any, inputs: Inputs, *, pairs: Sequence[str] = (), seconds: float | None, progress: bool = False
    ) -> None:
        """`template`: the request without its texts. `pairs`: the second text of each pair, as many as texts; or none.

        Raises InvalidInput where there are more or fewer.
        """
        if pairs and len(pairs) != len(inputs):
            raise InvalidInput(f"there are {len(inputs)} texts and {len(pairs)} text_pairs", field="text_pairs")
        super().__init__(seconds=seconds, progress=progress)
        self._template, self._inputs, self._pairs = template, inputs, pairs
        self._results: dict[int, list[Any]] = {}

    @property
    def size(self) -> int:
        return len(self._inputs)

    def parts(self) -> Iterator[InputPart]:
        prompt = len(getattr(self._template, "prompt", ""))
        yield from self._inputs.parts(most=TEXTS, letters=LETTERS, common=prompt, pairs=self._pairs)

    def message(self, part: InputPart) -> Any:
        message = type(self._template)()
        message.CopyFrom(self._template)
        self._inputs.add_to(message, part.rows)
        if self._pairs:
            message.text_pairs.extend(self._pairs[part.rows])
        return message

    def offsets(self, part: InputPart) -> Mapping[str, int]:
        return dict.fromkeys(("texts", "text_pairs", "tokenized"), part.start)

    def add_reply(self, part: InputPart, reply: Any) -> None:
        self._results[part.start] = self._read(reply)

    def result(self) -> Any:
        results = [result for start in sorted(self._results) for result in self._results[start]]
        return results[0] if self._inputs.single else results

    @abstractmethod
    def _read(self, reply: Any) -> list[Any]:
        """The result of each text of a reply."""


class Classify(TextResults):
    """The requests and replies of one `classify`."""

    _labels: tuple[str, ...] = ()

    def result(self) -> Classes:
        rows = super().result()
        scores = rows if self._inputs.single else np.array(rows, dtype=np.float32).reshape(-1, len(self._labels))
        return Classes(labels=self._labels, scores=scores)

    def _read(self, reply: Any) -> list[Any]:
        self._labels = tuple(reply.labels)
        return list(np.array(reply.scores, dtype=np.float32).reshape(-1, len(self._labels)))


class ClassifyTokens(TextResults):
    """The requests and replies of one `classify_tokens`."""

    def _read(self, reply: Any) -> list[Any]:
        labels, lengths = tuple(reply.labels), reply.lengths
        scores = np.array(reply.scores, dtype=np.float32).reshape(-1, len(labels))
        integers = [np.array(column, dtype=np.int32) for column in (reply.token_ids, reply.starts, reply.ends)]
        texts = zip(*(split_by_lengths(column, lengths) for column in (scores, *integers)), strict=True)
        return [
            TokenClasses(labels=labels, scores=scores, token_ids=ids, starts=starts, ends=ends)
            for scores, ids, starts, ends in texts
        ]


class Tokenize(TextResults):
    """The requests and replies of one `tokenize`."""

    def _read(self, reply: Any) -> list[Any]:
        return [
            TextTokens(
                ids=np.array(text.ids, dtype=np.int32),
                tokens=tuple(text.tokens),
                special=np.array(text.special, dtype=bool),
                starts=np.array(text.starts, dtype=np.int32),
                ends=np.array(text.ends, dtype=np.int32),
                truncated=text.truncated,
                expansion_tokens=text.expansion_tokens,
            )
            for text in reply.texts
        ]


class Detokenize(TextResults):
    """The requests and replies of one `detokenize`."""

    def _read(self, reply: Any) -> list[Any]:
        return list(reply.texts)
