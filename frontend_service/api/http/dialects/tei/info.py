"""The reply of GET /info."""

from typing import Any

from frontend_service.api.tei_v1.messages import info_response_to_pb
from frontend_service.services.models import ModelDescription
from shared.card import ModelCard
from shared.vectors import ScoringMethod, Task


def info_reply(description: ModelDescription, requests: int, threads: int) -> dict[str, Any]:
    """The model that is served and its limits. `requests`: most at once; `threads`: how many tokenise."""
    card, grpc_info = description.card, info_response_to_pb(description, requests, threads)
    return {
        "model_id": card.id,
        "model_sha": None,
        "model_dtype": card.dtype,
        "model_type": _model_type(card),
        "max_concurrent_requests": grpc_info.max_concurrent_requests,
        "max_input_length": grpc_info.max_input_length,
        "max_batch_tokens": grpc_info.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": grpc_info.max_client_batch_size,
        "auto_truncate": description.limits.auto_truncate,
        "tokenization_workers": threads,
        "version": grpc_info.version,
        "sha": None,
        "docker_label": None,
    }


def _model_type(card: ModelCard) -> dict[str, Any]:
    labels = {
        "id2label": {str(number): label for number, label in enumerate(card.labels)},
        "label2id": {label: number for number, label in enumerate(card.labels)},
    }
    if {ScoringMethod.CROSS_ENCODER, ScoringMethod.LISTWISE} & {*card.methods}:
        return {"reranker": labels}
    if Task.CLASSIFY in card.tasks:
        return {"classifier": labels}
    return {"embedding": {"pooling": card.pooling}}
