"""Messages of Classify and ClassifyTokens <-> domain types, both directions side by side."""

from frontend_service.api.packed import put_floats
from frontend_service.api.selvage_v1.codec.fields import optional_field, prompt_from_pb, truncation_from_pb, usage_to_pb
from frontend_service.domain.requests import ClassifyRequest, ClassifyTokensRequest
from frontend_service.services.classification import Classified, ClassifiedTokens
from selvage.v1 import classification_pb2 as pb


def classify_request_from_pb(message: pb.ClassifyRequest) -> ClassifyRequest:
    return ClassifyRequest(
        model=message.model,
        texts=tuple(message.texts),
        pairs=tuple(message.text_pairs),
        prompt=prompt_from_pb(message),
        cut=truncation_from_pb(message),
        normalize=optional_field(message, "normalize"),
    )


def classify_response_to_pb(_: ClassifyRequest, classified: Classified) -> pb.ClassifyResponse:
    answer, labels = classified.answer, classified.labels
    response = pb.ClassifyResponse(model=answer.model, labels=labels, usage=usage_to_pb(answer))
    put_floats(response, "scores", answer.result.scores)
    return response


def classify_tokens_request_from_pb(message: pb.ClassifyTokensRequest) -> ClassifyTokensRequest:
    return ClassifyTokensRequest(
        model=message.model,
        texts=tuple(message.texts),
        prompt=prompt_from_pb(message),
        cut=truncation_from_pb(message),
        token_id=optional_field(message, "token_id"),
        normalize=optional_field(message, "normalize"),
    )


def classify_tokens_response_to_pb(_: ClassifyTokensRequest, tokens: ClassifiedTokens) -> pb.ClassifyTokensResponse:
    answer = tokens.answer
    response = pb.ClassifyTokensResponse(
        model=answer.model,
        labels=tokens.labels,
        lengths=answer.result.row_lengths,
        token_ids=tokens.ids,
        starts=tokens.starts,
        ends=tokens.ends,
        usage=usage_to_pb(answer),
    )
    put_floats(response, "scores", answer.result.scores)
    return response
