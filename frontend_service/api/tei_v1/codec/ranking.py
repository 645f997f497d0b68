"""Messages of Rerank and RerankStream <-> domain types, both directions side by side."""

from collections.abc import Sequence

from frontend_service.api.tei_v1.codec.fields import compute_metadata, optional_truncate, truncation_from_pb
from frontend_service.domain.requests import RerankRequest, ScoreNormalization
from frontend_service.services.rank import Reranked
from shared.errors import InvalidInput
from tei.v1 import tei_pb2 as pb

SAME = ("query", "truncate", "truncation_direction")
"""Fields that must be equal in all messages of a RerankStream; other options are those of the first message."""


def rerank_request_from_pb(messages: Sequence[pb.RerankRequest]) -> RerankRequest:
    (message,) = messages
    if not message.query and "" in message.texts:
        place = list(message.texts).index("")
        raise InvalidInput(f"query and documents[{place}] are both empty", field=f"documents[{place}]")
    truncation = truncation_from_pb(message)
    return RerankRequest(
        queries=(message.query,),
        documents=tuple(message.texts),
        query_cut=truncation,
        document_cut=truncation,
        normalization=ScoreNormalization.LOGITS if message.raw_scores else ScoreNormalization.ACTIVATED,
        return_documents=message.return_text,
    )


def rerank_responses_to_pb(request: RerankRequest, reranked: Reranked) -> list[pb.RerankResponse]:
    characters = sum(map(len, request.documents)) + len(request.documents) * len(request.queries[0])
    metadata = compute_metadata(tokens=sum(reranked.answer.tokens.lengths))
    metadata.compute_chars = characters
    reply = pb.RerankResponse(metadata=metadata)
    for (index, score), text in zip(reranked.ranking, reranked.texts, strict=True):
        reply.ranks.add(index=index, score=score, text=text)
    return [reply]


def begin_rerank_request(message: pb.RerankStreamRequest) -> pb.RerankRequest:
    """The request that a stream becomes, with the options of its first message and without texts."""
    request = pb.RerankRequest(
        query=message.query,
        raw_scores=message.raw_scores,
        return_text=message.return_text,
        truncation_direction=message.truncation_direction,
    )
    if message.HasField("truncate"):
        request.truncate = message.truncate
    return request


def add_stream_text(request: pb.RerankRequest, message: pb.RerankStreamRequest) -> None:
    """Adds the text of a message to the request of its stream. Raises InvalidInput where a field of SAME differs."""
    for field in SAME:
        if _value_of(message, field) != _value_of(request, field):
            place = len(request.texts)
            raise InvalidInput(f"{field} of message {place} is not that of the messages before it", field=field)
    request.texts.append(message.text)


def _value_of(message: pb.RerankStreamRequest | pb.RerankRequest, field: str) -> object:
    """The value of a field of SAME; None for `truncate` where it is not set."""
    return optional_truncate(message) if field == "truncate" else getattr(message, field)
