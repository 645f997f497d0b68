"""The models that are served, as OpenAI lists them: /v1/models.

Source: platform.openai.com/docs/api-reference/models; `max_model_len` is vLLM's.
"""

from typing import Any

from frontend_service.api.http.errors import OPENAI
from frontend_service.api.http.reply import HttpReply, now, to_json
from frontend_service.api.http.route import HttpCall, Route
from frontend_service.application.frontend import Frontend
from shared.card import ModelCard

STARTED = now()
"""The time at which models are told to be created, since nobody knows it."""


def model_of(card: ModelCard, name: str) -> dict[str, Any]:
    """A model by one of its names, as OpenAI lists it, with what vLLM adds, and what our cards tell.

    Several names of a model have the same `root`, as in vLLM.
    """
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "selvage",
        "root": card.id,
        "parent": None,
        "max_model_len": card.max_tokens,
        "tasks": [task.name.lower() for task in card.tasks],
        "outputs": [output.name.lower() for output in card.outputs],
        "dimensions": card.dimensions or card.multi_vector_dimensions,
        "fingerprint": card.fingerprint,
    }


def routes(frontend: Frontend) -> list[Route]:
    """Routes of all models, and of one by its name."""

    async def models(_: HttpCall) -> HttpReply:
        listed = [model_of(card, name) for card in frontend.models.cards() for name in card.names]
        return HttpReply(body=to_json({"object": "list", "data": listed}))

    async def model(call: HttpCall) -> HttpReply:
        return HttpReply(body=to_json(model_of(frontend.models.get(call.rest).card, call.rest)))

    return [
        Route(
            method="GET",
            path="/v1/models",
            dialect=OPENAI,
            summary="The models that are served",
            example={"object": "list", "data": [{"id": "all-MiniLM-L6-v2", "object": "model", "max_model_len": 256}]},
            needs_worker=False,
            serve=models,
        ),
        Route(
            method="GET",
            path="/v1/models/",
            dialect=OPENAI,
            summary="One of them",
            example={"id": "all-MiniLM-L6-v2", "object": "model", "max_model_len": 256},
            needs_worker=False,
            serve=model,
        ),
    ]
