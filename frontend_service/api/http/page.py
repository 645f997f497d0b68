"""Routes that ask no model: the playground, OpenAPI and its page, health, metrics."""

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
    model_routes: Iterable[Route],
    *,
    keys: bool,
    is_draining: Callable[[], bool],
    metrics: Callable[[], tuple[bytes, str]],
) -> list[Route]:
    """`model_routes`: the other routes of the OpenAPI document; `keys`: whether callers need an API key; `metrics`:
    returns the page for Prometheus and its content type."""

    async def openapi_document(_: HttpCall) -> HttpReply:
        return HttpReply(body=document)

    async def manual_page(_: HttpCall) -> HttpReply:
        return HttpReply(body=docs, content_type=HTML, headers=manual.HEADERS)

    async def health(_: HttpCall) -> HttpReply:
        if is_draining():
            raise WorkerUnavailable("the service is draining", retry_after=1.0)
        frontend.models.cards()
        return HttpReply(body=b"{}")

    async def metrics_page(_: HttpCall) -> HttpReply:
        body, content_type = metrics()
        return HttpReply(body=body, content_type=content_type)

    def get(path: str, summary: str, endpoint: Endpoint, **options: Any) -> Route:
        return Route(method="GET", path=path, dialect=TEI, summary=summary, endpoint=endpoint, **options)

    playground = {route.path: route for route in assets.routes()}
    documented = [
        playground.pop("/"),
        get("/openapi.json", "This document", openapi_document, is_open=True),
        get("/docs", "The same, for a person", manual_page, is_open=True, content_type=HTML),
        get("/health", "Whether a model is served", health, is_open=True, example={}),
        get("/ping", "The same, as SageMaker asks", health, is_open=True, example={}),
        get("/metrics", "For Prometheus", metrics_page, is_admitted=False, content_type="text/plain"),
    ]
    description = openapi([*model_routes, *documented], keys=keys)
    document, docs = to_json(description), manual.page(description).encode()
    return [*documented, *playground.values()]
