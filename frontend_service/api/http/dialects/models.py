"""The models that are served, in the form of OpenAI's list: /v1/models, and /models as llama.cpp has it too.

Source: platform.openai.com/docs/api-reference/models; `max_model_len` is vLLM's.
"""

from typing import Any

from frontend_service.api.http.errors import OPENAI
from frontend_service.api.http.reply import HttpReply, now, to_json
from frontend_service.api.http.route import HttpCall, Route
from frontend_service.application.frontend import Frontend
from shared.card import ModelCard

MODEL = {"id": "all-MiniLM-L6-v2", "object": "model", "max_model_len": 256}
STARTED = now()
"""The creation time of all models in replies, since the real one is unknown."""


def model_entry(card: ModelCard, name: str) -> dict[str, Any]:
    """A model under one of its names, with OpenAI's fields, vLLM's, and some of our card.

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
    """The routes for all models, and for one model by its name."""

    async def list_models(_: HttpCall) -> HttpReply:
        entries = [model_entry(card, name) for card in frontend.models.cards() for name in card.names]
        return HttpReply(body=to_json({"object": "list", "data": entries}))

    async def get_model(call: HttpCall) -> HttpReply:
        return HttpReply(body=to_json(model_entry(frontend.models.get(call.rest).card, call.rest)))

    return [
        Route(
            method="GET",
            path=prefix + path,
            dialect=OPENAI,
            summary=summary,
            example=example,
            needs_worker=False,
            endpoint=endpoint,
        )
        for prefix in ("/v1", "")
        for path, endpoint, summary, example in (
            ("/models", list_models, "The models that are served", {"object": "list", "data": [MODEL]}),
            ("/models/", get_model, "One of them", MODEL),
        )
    ]
