"""The reply of Info: the model that is served and its limits."""

from importlib.metadata import PackageNotFoundError, version

from frontend_service.services.models import ModelDescription
from shared.card import ModelCard
from shared.vectors import ScoringMethod, Task
from tei.v1 import tei_pb2 as pb


def info_response_to_pb(description: ModelDescription, requests: int, threads: int) -> pb.InfoResponse:
    """`requests`: most requests at once; `threads`: how many tokenise."""
    card, limits = description.card, description.limits
    return pb.InfoResponse(
        version=_version(),
        model_id=card.id,
        model_dtype=card.dtype,
        model_type=model_type(card),
        max_concurrent_requests=requests,
        max_input_length=card.max_tokens,
        max_batch_tokens=min(limits.request_tokens, description.queued_tokens),
        max_client_batch_size=min(limits.texts, limits.documents),
        tokenization_workers=threads,
    )


def model_type(card: ModelCard) -> pb.ModelType:
    """The first kind that fits a model: reranker, classifier, embedding."""
    if {ScoringMethod.CROSS_ENCODER, ScoringMethod.LISTWISE} & {*card.methods}:
        return pb.MODEL_TYPE_RERANKER
    return pb.MODEL_TYPE_CLASSIFIER if Task.CLASSIFY in card.tasks else pb.MODEL_TYPE_EMBEDDING


def _version() -> str:
    try:
        return version("selvage-serving")
    except PackageNotFoundError:  # not installed: it runs from its sources
        return "0"
