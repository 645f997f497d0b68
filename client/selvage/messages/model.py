"""Tokenize, Detokenize and the models' cards <-> messages. No I/O."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from selvage.messages.embedding import LETTERS, TEXTS
from selvage.messages.inputs import Inputs
from selvage.messages.parts import InputPart
from selvage.model_card import card_from_pb
from selvage.results import TextTokens
from selvage.v1 import model_pb2


class InParts:
    """Texts, or token ids, that are answered one by one; replies have a list `texts`."""

    def __init__(self, template: Any, inputs: Inputs, *, seconds: float | None) -> None:
        """`template`: the request but for its entries."""
        self.seconds, self.progress = seconds, False
        self._template, self._inputs = template, inputs
        self._found: dict[int, list[Any]] = {}

    @property
    def size(self) -> int:
        return len(self._inputs)

    def parts(self) -> Iterator[InputPart]:
        yield from self._inputs.parts(most=TEXTS, letters=LETTERS)

    def message(self, part: InputPart) -> Any:
        message = type(self._template)()
        message.CopyFrom(self._template)
        self._inputs.put(message, part.rows)
        return message

    def places(self, part: InputPart) -> Mapping[str, int]:
        return {"texts": part.start, "tokenized": part.start}

    def take(self, part: InputPart, reply: Any) -> None:
        self._found[part.start] = [_text(each) for each in reply.texts]

    def result(self) -> Any:
        found = [each for start in sorted(self._found) for each in self._found[start]]
        return found[0] if self._inputs.single else found


class Cards:
    """One card, or those of all models."""

    def __init__(self, request: model_pb2.GetModelRequest | model_pb2.ListModelsRequest, seconds: float | None) -> None:
        self.seconds, self.progress, self.size = seconds, False, 1
        self._request = request
        self._found: Any = None

    def parts(self) -> Iterator[InputPart]:
        yield InputPart(start=0, stop=1)

    def message(self, _: InputPart) -> Any:
        return self._request

    def places(self, _: InputPart) -> Mapping[str, int]:
        return {}

    def take(self, _: InputPart, reply: Any) -> None:
        if isinstance(reply, model_pb2.GetModelResponse):
            self._found = card_from_pb(reply.card)
        else:
            self._found = [card_from_pb(each) for each in reply.cards]

    def result(self) -> Any:
        return self._found


def _text(reply: Any) -> Any:
    """A string of Detokenize as it is."""
    if isinstance(reply, str):
        return reply
    return TextTokens(
        ids=np.array(reply.ids, dtype=np.int32),
        tokens=tuple(reply.tokens),
        special=np.array(reply.special, dtype=bool),
        starts=np.array(reply.starts, dtype=np.int32),
        ends=np.array(reply.ends, dtype=np.int32),
        truncated=reply.truncated,
        expansion_tokens=reply.expansion_tokens,
    )
