"""Messages of Tokenize and Decode <-> domain types, both directions side by side."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from frontend_service.api.tei_v1.codec.fields import prompt_from_pb, texts_from_pb
from frontend_service.domain.requests import DetokenizeRequest, TokenizeRequest, Truncation
from frontend_service.services.models import Detokenized, ShownTexts
from frontend_service.tokenizing.tokenizer import TokenizedText
from shared.errors import InvalidInput
from tei.v1 import tei_pb2 as pb

UNLIMITED = Truncation(limited=False)
"""Texts to tokenize may be longer than the model takes."""


class TeiToken(NamedTuple):
    """A token of a text as text-embeddings-inference has it.

    `text` is the part of the text that it stands for, and `start` and `stop` are that part's bounds in UTF-8. A special
    token stands for no part: its text is its name, and it has no bounds.
    """

    id: int
    text: str
    special: bool = False
    start: int | None = None
    stop: int | None = None


def encode_request_from_pb(messages: Sequence[pb.EncodeRequest]) -> TokenizeRequest:
    texts = texts_from_pb(message.inputs for message in messages)
    return TokenizeRequest(texts=texts, prompt=prompt_from_pb(messages[0]), cut=UNLIMITED)


def encode_responses_to_pb(messages: Sequence[pb.EncodeRequest], shown: ShownTexts) -> list[pb.EncodeResponse]:
    replies = []
    for message, text in zip(messages, shown.texts, strict=True):
        reply = pb.EncodeResponse()
        for token in tei_tokens(shown.prompt + message.inputs, text, special=message.add_special_tokens):
            reply.tokens.add(**token._asdict())
        replies.append(reply)
    return replies


def tei_tokens(whole: str, tokenized: TokenizedText, *, special: bool) -> Iterator[TeiToken]:
    """The tokens of a text. `whole`: its prompt and the text; `special`: with its special tokens."""
    encoding, offsets = tokenized.encoding, byte_offsets(whole)
    columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, tokenized.offsets, strict=True)
    for identity, name, is_special, (start, stop) in columns:
        if not is_special:
            yield TeiToken(id=identity, text=whole[start:stop], start=offsets[start], stop=offsets[stop])
        elif special:
            yield TeiToken(id=identity, text=name, special=True)


def byte_offsets(text: str) -> Sequence[int]:
    """The offset in UTF-8 at which each character of a text begins, and that at which the text ends."""
    if text.isascii():
        return range(len(text) + 1)
    encoded = np.frombuffer(text.encode(), dtype=np.uint8)
    begins: list[int] = np.flatnonzero(encoded & 0xC0 != 0x80).tolist()
    return [*begins, len(encoded)]


def decode_request_from_pb(messages: Sequence[pb.DecodeRequest]) -> DetokenizeRequest:
    empty = next((place for place, message in enumerate(messages) if not message.ids), None)
    if empty is not None:
        raise InvalidInput(f"tokenized[{empty}] is empty", field=f"tokenized[{empty}]")
    return DetokenizeRequest(
        tokenized=tuple(tuple(message.ids) for message in messages), skip_special_tokens=messages[0].skip_special_tokens
    )


def decode_responses_to_pb(detokenized: Detokenized) -> list[pb.DecodeResponse]:
    return [pb.DecodeResponse(text=text) for text in detokenized.texts]
