"""Tokenize, Detokenize, GetModel and ListModels: requests, and replies -> results. No I/O."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from selvage.messages.card import card_from_pb
from selvage.messages.embedding import LETTERS, TEXTS
from selvage.messages.inputs import Inputs
from selvage.messages.parts import InputPart
from selvage.results import TextTokens
from selvage.v1 import model_pb2


class TokenizeOrDetokenize:
    """The requests and replies of one `tokenize` or `detokenize`; both replies have a result a text in `texts`."""

    def __init__(self, template: Any, inputs: Inputs, *, seconds: float | None) -> None:
        """`template`: the request without its texts or token ids."""
        self.seconds, self.progress = seconds, False
        self._template, self._inputs = template, inputs
        self._results: dict[int, list[Any]] = {}

    @property
    def size(self) -> int:
        return len(self._inputs)

    def parts(self) -> Iterator[InputPart]:
        yield from self._inputs.parts(most=TEXTS, letters=LETTERS)

    def message(self, part: InputPart) -> Any:
        message = type(self._template)()
        message.CopyFrom(self._template)
        self._inputs.add_to(message, part.rows)
        return message

    def offsets(self, part: InputPart) -> Mapping[str, int]:
        return {"texts": part.start, "tokenized": part.start}

    def add_reply(self, part: InputPart, reply: Any) -> None:
        self._results[part.start] = [_result(text) for text in reply.texts]

    def result(self) -> Any:
        results = [result for start in sorted(self._results) for result in self._results[start]]
        return results[0] if self._inputs.single else results


class Cards:
    """The request and reply of one `model`, for one card, or of one `models`, for all."""

    def __init__(self, request: model_pb2.GetModelRequest | model_pb2.ListModelsRequest, seconds: float | None) -> None:
        self.seconds, self.progress, self.size = seconds, False, 1
        self._request = request
        self._cards: Any = None

    def parts(self) -> Iterator[InputPart]:
        yield InputPart(start=0, stop=1)

    def message(self, _: InputPart) -> Any:
        return self._request

    def offsets(self, _: InputPart) -> Mapping[str, int]:
        return {}

    def add_reply(self, _: InputPart, reply: Any) -> None:
        if isinstance(reply, model_pb2.GetModelResponse):
            self._cards = card_from_pb(reply.card)
        else:
            self._cards = [card_from_pb(card) for card in reply.cards]

    def result(self) -> Any:
        return self._cards


def _result(text: Any) -> Any:
    """The result for one text: a string of Detokenize as it is, else TextTokens."""
    if isinstance(text, str):
        return text
    return TextTokens(
        ids=np.array(text.ids, dtype=np.int32),
        tokens=tuple(text.tokens),
        special=np.array(text.special, dtype=bool),
        starts=np.array(text.starts, dtype=np.int32),
        ends=np.array(text.ends, dtype=np.int32),
        truncated=text.truncated,
        expansion_tokens=text.expansion_tokens,
    )
