"""The whole API over HTTP: the routes of all dialects, and those that ask no model, such as health."""

from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from typing import Any

from frontend_service.api.http import cohere, nim, openai, tei, vllm
from frontend_service.api.http.app import ALL_HOSTS, App, Hosts, ObserveCall
from frontend_service.api.http.errors import TEI
from frontend_service.api.http.openapi import openapi, page
from frontend_service.api.http.port import HttpServer
from frontend_service.api.http.replies import HTML, HttpReply, to_json
from frontend_service.api.http.route import Endpoint, HttpCall, Route
from frontend_service.frontend import Frontend
from shared.errors import WorkerUnavailable
from shared.security import Fresh, Identity

DIALECTS = (openai, cohere, vllm, nim, tei)
PLAYGROUND = "frontend_service.api.http.playground"
"""The package of the playground's files, which load nothing from other hosts."""
FIRST_PAGE = "index.html"
CONTENT_TYPES = {
    ".html": HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_HEADERS = (
    ("content-security-policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("cache-control", "no-cache"),  # so that after an update no old file is mixed with new ones
    ("referrer-policy", "no-referrer"),
)


def http_server(
    frontend: Frontend,
    *,
    keys: bool,
    metrics: Callable[[], tuple[bytes, str]],
    observe_call: ObserveCall | None = None,
    tls: Fresh[Identity] | None = None,
    drain_seconds: float,
    hosts: Hosts = ALL_HOSTS,
    origins: Iterable[str] = (),
) -> HttpServer:
    """Builds the server, which is not started yet.

    `keys`: whether callers need an API key; `metrics`: returns the page for Prometheus and its content type; `hosts`:
    hosts that requests may be for; `origins`: web pages of other sites that may call the API.
    """

    def is_draining() -> bool:
        return server.draining

    routes = all_routes(keys=keys, is_draining=is_draining, metrics=metrics)
    server = HttpServer(App(frontend, routes, observe_call, hosts=hosts, origins=origins), tls, drain_seconds)
    return server


def all_routes(*, keys: bool, is_draining: Callable[[], bool], metrics: Callable[[], tuple[bytes, str]]) -> list[Route]:
    """All routes of the API; those that clients ask most come first."""

    async def health(call: HttpCall) -> HttpReply:
        if is_draining():
            raise WorkerUnavailable("the service is draining", retry_after=1.0)
        call.frontend.models.cards()
        return HttpReply(body=b"{}")

    async def metrics_page(_: HttpCall) -> HttpReply:
        body, content_type = metrics()
        return HttpReply(body=body, content_type=content_type)

    async def openapi_document(_: HttpCall) -> HttpReply:
        return HttpReply(body=document)

    async def openapi_page(_: HttpCall) -> HttpReply:
        return HttpReply(body=docs, content_type=HTML, headers=PAGE_HEADERS)

    def get(path: str, summary: str, endpoint: Endpoint, **options: Any) -> Route:
        return Route(method="GET", path=path, dialect=TEI, summary=summary, endpoint=endpoint, **options)

    model_routes = [route for dialect in DIALECTS for route in dialect.ROUTES]
    playground = {route.path: route for route in _playground_routes()}
    documented = [
        playground.pop("/"),
        get("/openapi.json", "This document", openapi_document, is_open=True),
        get("/docs", "The same, for a person", openapi_page, is_open=True, content_type=HTML),
        get("/health", "Whether a model is served", health, is_open=True, example={}),
        get("/ping", "The same, as SageMaker asks", health, is_open=True, example={}),
        get("/metrics", "For Prometheus", metrics_page, is_admitted=False, content_type="text/plain"),
    ]
    description = openapi([*model_routes, *documented], keys=keys)
    document, docs = to_json(description), page(description).encode()
    return [*model_routes, *documented, *playground.values()]


def _playground_routes() -> Iterator[Route]:
    """Routes of the playground's page and of its files. All are open: the page itself asks for an API key."""
    for file in files(PLAYGROUND).iterdir():
        content_type = CONTENT_TYPES.get("." + file.name.rpartition(".")[2])
        if content_type is not None:
            reply = HttpReply(body=file.read_bytes(), content_type=content_type, headers=PAGE_HEADERS)
            yield Route(
                method="GET",
                path="/" if file.name == FIRST_PAGE else f"/playground/{file.name}",
                dialect=TEI,
                summary="The playground, for a browser",
                content_type=content_type,
                is_open=True,
                endpoint=_constant_endpoint(reply),
            )


def _constant_endpoint(reply: HttpReply) -> Endpoint:
    """Makes an endpoint that always gives the same reply."""

    async def endpoint(_: HttpCall) -> HttpReply:
        return reply

    return endpoint
