"""Fields, names and replies that the paths of this shape have in common."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

import msgspec

from frontend_service.api.http.reply import HttpReply, to_json
from frontend_service.api.renaming import Names
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer
from frontend_service.domain.ranking_requests import RerankRequest
from frontend_service.domain.requests import ClassifyRequest, EmbedRequest, Truncation
from shared.errors import UnknownModel
from shared.terms import RequestTerms
from shared.vectors import TruncationSide

A = TypeVar("A")
R = TypeVar("R", EmbedRequest, ClassifyRequest, RerankRequest)
OPTIONS: Names = (("truncation_side", "truncation_direction"),)
"""Names of options in errors, whatever the path."""
FEWER: Names = (("(set sparse_top_k, or )?ask for fewer texts.*", "ask for fewer inputs"),)
"""The remedy for a large reply, where texts are `inputs`."""
INPUTS: Names = (
    *FEWER,
    ("^texts is empty, and so is tokenized$", "inputs is empty"),
    (r"\b(texts|tokenized)(?=\[| has | is )|^(texts|tokenized)$", "inputs"),
    *OPTIONS,
)
SIDES = {"left": TruncationSide.LEFT, "right": TruncationSide.RIGHT}


class TruncatableBody(msgspec.Struct, kw_only=True):
    """Fields that say what is done with long texts."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"

    @property
    def cut(self) -> Truncation:
        """The cut that these fields ask for."""
        return Truncation(truncate=self.truncate, side=SIDES[self.truncation_direction.lower()])


class CuttableRequest(TruncatableBody, kw_only=True):
    """A request whose texts may be cut. `model` counts only where several are served."""

    model: str = ""


def counted_reply(answer: Answer, content: Any) -> HttpReply:
    """A reply with the header that the load scripts of text-embeddings-inference read."""
    return HttpReply(body=to_json(content), headers=(("x-compute-tokens", str(answer.tokens.total)),))


def resolved_name(frontend: Frontend, name: str) -> str:
    """The name by which a model is found: none where there is one, since the original serves one and asks for no name.

    Raises WorkerUnavailable.
    """
    try:
        frontend.models.get("")
    except UnknownModel:
        return name
    return ""


def for_any_name(
    frontend: Frontend, ask: Callable[[R, RequestTerms], Awaitable[A]]
) -> Callable[[R, RequestTerms], Awaitable[A]]:
    """Asks the one model that is served, whatever a request calls it, and where there are several the one it names."""

    async def asks(request: R, terms: RequestTerms) -> A:
        return await ask(replace(request, model=resolved_name(frontend, request.model)), terms)

    return asks
