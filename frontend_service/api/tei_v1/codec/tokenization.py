"""Tokenize and Decode: messages <-> domain types, both directions side by side."""

from collections.abc import Sequence

import numpy as np

from frontend_service.api.tei_v1.codec.fields import prompt, texts
from frontend_service.domain.requests import DetokenizeRequest, TokenizeRequest, Truncation
from frontend_service.services.models import Detokenized, ShownTexts
from shared.errors import InvalidInput
from tei.v1 import tei_pb2 as pb

UNLIMITED = Truncation(limited=False)


def encode_request(messages: Sequence[pb.EncodeRequest]) -> TokenizeRequest:
    return TokenizeRequest(texts=texts(each.inputs for each in messages), prompt=prompt(messages[0]), cut=UNLIMITED)


def encode_replies(messages: Sequence[pb.EncodeRequest], shown: ShownTexts) -> list[pb.EncodeResponse]:
    replies = []
    for message, text in zip(messages, shown.texts, strict=True):
        reply, written, encoding = pb.EncodeResponse(), shown.prompt + message.inputs, text.encoding
        places = byte_places(written)
        columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, text.offsets, strict=True)
        for identity, token, special, (start, stop) in columns:
            if not special:
                reply.tokens.add(id=identity, text=written[start:stop], start=places[start], stop=places[stop])
            elif message.add_special_tokens:
                reply.tokens.add(id=identity, text=token, special=True)
        replies.append(reply)
    return replies


def byte_places(text: str) -> Sequence[int]:
    """Where each character begins in UTF-8, and where the last one ends."""
    if text.isascii():
        return range(len(text) + 1)
    encoded = np.frombuffer(text.encode(), dtype=np.uint8)
    begins: list[int] = np.flatnonzero(encoded & 0xC0 != 0x80).tolist()
    return [*begins, len(encoded)]


def decode_request(messages: Sequence[pb.DecodeRequest]) -> DetokenizeRequest:
    empty = next((place for place, each in enumerate(messages) if not each.ids), None)
    if empty is not None:
        raise InvalidInput(f"tokenized[{empty}] is empty", field=f"tokenized[{empty}]")
    return DetokenizeRequest(
        tokenized=tuple(tuple(each.ids) for each in messages), skip_special_tokens=messages[0].skip_special_tokens
    )


def decode_replies(detokenized: Detokenized) -> list[pb.DecodeResponse]:
    return [pb.DecodeResponse(text=text) for text in detokenized.texts]
