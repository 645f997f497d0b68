"""Models, Tokenize and Detokenize: public messages <-> domain types, both directions side by side."""

from collections.abc import Sequence

from frontend_service.codec.fields import cut, prompt
from frontend_service.limits import Limits
from frontend_service.requests import TokenizeRequest
from frontend_service.tokenization import TokenizedText
from selvage.v1 import model_pb2


def tokenize_request(message: model_pb2.TokenizeRequest) -> TokenizeRequest:
    return TokenizeRequest(model=message.model, texts=tuple(message.texts), prompt=prompt(message), cut=cut(message))


def tokenize_response(name: str, tokenized: Sequence[TokenizedText]) -> model_pb2.TokenizeResponse:
    response = model_pb2.TokenizeResponse(model=name)
    for text in tokenized:
        encoding = text.encoding
        response.texts.add(
            ids=encoding.ids,
            tokens=encoding.tokens,
            special=map(bool, encoding.special_tokens_mask),
            starts=[start for start, _ in encoding.offsets],
            ends=[end for _, end in encoding.offsets],
            truncated=text.truncated,
            expansion_tokens=text.expansion,
        )
    return response


def limits_to_pb(limits: Limits, queued_tokens: int) -> model_pb2.Limits:
    return model_pb2.Limits(
        texts=limits.texts,
        documents=limits.documents,
        text_bytes=limits.text_bytes,
        message_bytes=limits.message_bytes,
        request_tokens=limits.request_tokens,
        request_rows=limits.request_rows,
        scores=limits.scores,
        similarities=limits.similarities,
        vector_elements=limits.vector_elements,
        queued_tokens=queued_tokens,
        pooled_tokens=limits.pooled_tokens,
    )
