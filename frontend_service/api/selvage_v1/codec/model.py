"""Messages of GetModel, Tokenize and Detokenize <-> domain types, both directions side by side."""

from frontend_service.api.selvage_v1.codec.fields import (
    enum_from_pb,
    id_lists_from_pb,
    prompt_from_pb,
    truncation_from_pb,
)
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import DetokenizeRequest, TokenizeRequest
from frontend_service.services.models import Detokenized, ModelDescription, ShownTexts
from selvage.v1 import model_pb2
from shared.codec.fields import card_to_pb
from shared.server.options import REQUEST_BYTES
from shared.vectors import InputType


def get_model_response_to_pb(description: ModelDescription) -> model_pb2.GetModelResponse:
    limits = limits_to_pb(description.limits, description.queued_tokens)
    return model_pb2.GetModelResponse(card=card_to_pb(description.card), limits=limits)


def tokenize_request_from_pb(message: model_pb2.TokenizeRequest) -> TokenizeRequest:
    return TokenizeRequest(
        model=message.model,
        texts=tuple(message.texts),
        prompt=prompt_from_pb(message),
        cut=truncation_from_pb(message),
    )


def tokenize_response_to_pb(shown: ShownTexts) -> model_pb2.TokenizeResponse:
    response = model_pb2.TokenizeResponse(model=shown.model)
    for text in shown.texts:
        encoding, offsets = text.encoding, text.offsets
        response.texts.add(
            ids=encoding.ids,
            tokens=encoding.tokens,
            special=map(bool, encoding.special_tokens_mask),
            starts=[start for start, _ in offsets],
            ends=[end for _, end in offsets],
            truncated=text.truncated,
            expansion_tokens=text.expansion,
        )
    return response


def detokenize_request_from_pb(message: model_pb2.DetokenizeRequest) -> DetokenizeRequest:
    return DetokenizeRequest(
        model=message.model,
        tokenized=id_lists_from_pb(message.tokenized),
        skip_special_tokens=message.skip_special_tokens,
        input_type=enum_from_pb(InputType, message.input_type, "input_type", InputType.UNSPECIFIED),
    )


def detokenize_response_to_pb(detokenized: Detokenized) -> model_pb2.DetokenizeResponse:
    return model_pb2.DetokenizeResponse(model=detokenized.model, texts=detokenized.texts)


def limits_to_pb(limits: Limits, queued_tokens: int) -> model_pb2.Limits:
    return model_pb2.Limits(
        texts=limits.texts,
        documents=limits.documents,
        text_bytes=limits.text_bytes,
        message_bytes=REQUEST_BYTES,
        request_tokens=limits.request_tokens,
        request_rows=limits.request_rows,
        scores=limits.scores,
        similarities=limits.similarities,
        vector_elements=limits.vector_elements,
        queued_tokens=queued_tokens,
        pooled_tokens=limits.pooled_tokens,
        spans=limits.spans,
    )
