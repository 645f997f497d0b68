"""Tokenize and Decode: messages <-> domain types, both directions side by side."""

from collections.abc import Sequence

from frontend_service.doors.tei_v1.codec.fields import prompt
from frontend_service.models import Detokenized, ShownTexts
from frontend_service.requests import Cut, DetokenizeRequest, TokenizeRequest
from tei.v1 import tei_pb2 as pb

UNLIMITED = Cut(limited=False)


def encode_request(messages: Sequence[pb.EncodeRequest]) -> TokenizeRequest:
    texts = tuple(each.inputs for each in messages)
    return TokenizeRequest(texts=texts, prompt=prompt(messages[0]), cut=UNLIMITED)


def encode_replies(messages: Sequence[pb.EncodeRequest], shown: ShownTexts) -> list[pb.EncodeResponse]:
    replies = []
    for message, text in zip(messages, shown.texts, strict=True):
        reply, written, encoding = pb.EncodeResponse(), shown.prompt + message.inputs, text.encoding
        columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, text.offsets, strict=True)
        for identity, token, special, (start, stop) in columns:
            if not special:
                reply.tokens.add(id=identity, text=written[start:stop], start=start, stop=stop)
            elif message.add_special_tokens:
                reply.tokens.add(id=identity, text=token, special=True)
        replies.append(reply)
    return replies


def decode_request(messages: Sequence[pb.DecodeRequest]) -> DetokenizeRequest:
    return DetokenizeRequest(
        tokenized=tuple(tuple(each.ids) for each in messages), skip_special_tokens=messages[0].skip_special_tokens
    )


def decode_replies(detokenized: Detokenized) -> list[pb.DecodeResponse]:
    return [pb.DecodeResponse(text=text) for text in detokenized.texts]
