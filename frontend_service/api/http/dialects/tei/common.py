"""Fields, names and replies that the paths of this dialect have in common."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

import msgspec

from frontend_service.api.http.reply import HttpReply, to_json
from frontend_service.api.renaming import Names
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import ClassifyRequest, EmbedRequest, RerankRequest, Truncation
from shared.errors import UnknownModel
from shared.terms import RequestTerms
from shared.vectors import TruncationSide

A = TypeVar("A")
R = TypeVar("R", EmbedRequest, ClassifyRequest, RerankRequest)
OPTIONS: Names = (("truncation_side", "truncation_direction"),)
"""Our names of options in errors, on all paths."""
FEWER: Names = (
    ("(set sparse_top_k, or )?ask for fewer texts.*", "ask for fewer inputs"),
    ("ask for a smaller data_type .*", "send fewer tokens"),
)
"""The remedy for a large reply, on paths where texts are `inputs`."""
INPUTS: Names = (
    *FEWER,
    ("^texts is empty, and so is tokenized$", "inputs is empty"),
    (r"\b(texts|tokenized)(?=\[| has | is )|^(texts|tokenized)$", "inputs"),
    *OPTIONS,
)
"""Our names in errors, on paths where texts are `inputs`."""
TRUNCATION_SIDES = {"left": TruncationSide.LEFT, "right": TruncationSide.RIGHT}


class TruncatableBody(msgspec.Struct, kw_only=True):
    """Fields about the truncation of long texts."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"

    @property
    def cut(self) -> Truncation:
        """The truncation that these fields ask for."""
        return Truncation(truncate=self.truncate, side=TRUNCATION_SIDES[self.truncation_direction.lower()])


class CuttableRequest(TruncatableBody, kw_only=True):
    """A body whose texts may be truncated. `model` counts only where several models are served."""

    model: str = ""


def counted_reply(answer: Answer, content: Any) -> HttpReply:
    """A reply with the header that the load scripts of text-embeddings-inference read."""
    return HttpReply(body=to_json(content), headers=(("x-compute-tokens", str(answer.tokens.total)),))


def resolved_name(frontend: Frontend, name: str) -> str:
    """The name to look up a model by: none where only one is served, since the original serves one and reads no name.

    Raises WorkerUnavailable.
    """
    try:
        frontend.models.get("")
    except UnknownModel:
        return name
    return ""


def for_any_name(
    frontend: Frontend, call_service: Callable[[R, RequestTerms], Awaitable[A]]
) -> Callable[[R, RequestTerms], Awaitable[A]]:
    """Wraps `call_service` so that a request may name any model where only one is served."""

    async def call_with_resolved_name(request: R, terms: RequestTerms) -> A:
        return await call_service(replace(request, model=resolved_name(frontend, request.model)), terms)

    return call_with_resolved_name
