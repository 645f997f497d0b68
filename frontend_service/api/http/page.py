"""What there is to be looked at: the playground, OpenAPI and its page, health, metrics."""

from collections.abc import Callable, Iterable
from typing import Any

from frontend_service.api.http import assets, manual
from frontend_service.api.http.errors import TEI
from frontend_service.api.http.openapi import openapi
from frontend_service.api.http.reply import HTML, HttpReply, to_json
from frontend_service.api.http.route import Endpoint, HttpCall, Route
from frontend_service.application.frontend import Frontend
from shared.errors import WorkerUnavailable


def routes(
    frontend: Frontend,
    answered: Iterable[Route],
    *,
    keys: bool,
    is_draining: Callable[[], bool],
    metrics: Callable[[], tuple[bytes, str]],
) -> list[Route]:
    """`answered`: what else is documented; `metrics`: the page for Prometheus, and its content type."""

    async def tells(_: HttpCall) -> HttpReply:
        return HttpReply(body=document)

    async def shows(_: HttpCall) -> HttpReply:
        return HttpReply(body=docs, content_type=HTML, headers=manual.HEADERS)

    async def health(_: HttpCall) -> HttpReply:
        if is_draining():
            raise WorkerUnavailable("the service is draining", retry_after=1.0)
        frontend.models.cards()
        return HttpReply(body=b"{}")

    async def measured(_: HttpCall) -> HttpReply:
        body, kind = metrics()
        return HttpReply(body=body, content_type=kind)

    def get(path: str, summary: str, serve: Endpoint, **options: Any) -> Route:
        return Route(method="GET", path=path, dialect=TEI, summary=summary, serve=serve, **options)

    playground = {route.path: route for route in assets.routes()}
    shown = [
        playground.pop("/"),
        get("/openapi.json", "This document", tells, is_open=True),
        get("/docs", "The same, for a person", shows, is_open=True, content_type=HTML),
        get("/health", "Whether a model is served", health, is_open=True, example={}),
        get("/ping", "The same, as SageMaker asks", health, is_open=True, example={}),
        get("/metrics", "For Prometheus", measured, is_admitted=False, content_type="text/plain"),
    ]
    described = openapi([*answered, *shown], keys=keys)
    document, docs = to_json(described), manual.page(described).encode()
    return [*shown, *playground.values()]
