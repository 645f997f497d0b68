"""What there is to be looked at: the playground, OpenAPI and its page, health, metrics."""

from collections.abc import Callable, Iterable

from frontend_service.doors.http import assets, manual
from frontend_service.doors.http.errors import TEI
from frontend_service.doors.http.openapi import openapi
from frontend_service.doors.http.reply import HTML, Reply, written
from frontend_service.doors.http.route import Call, Route
from frontend_service.frontend import Frontend
from shared.errors import WorkerUnavailable


def routes(
    frontend: Frontend,
    answered: Iterable[Route],
    *,
    keys: bool,
    is_draining: Callable[[], bool],
    metrics: Callable[[], tuple[bytes, str]],
) -> list[Route]:
    """`answered`: the routes to be documented; `metrics`: the page for Prometheus, and its content type."""
    described = openapi(answered, keys=keys)
    document, docs = written(described), manual.page(described).encode()

    async def tells(_: Call) -> Reply:
        return Reply(body=document)

    async def shows(_: Call) -> Reply:
        return Reply(body=docs, content_type=HTML)

    async def health(_: Call) -> Reply:
        if is_draining():
            raise WorkerUnavailable("the service is draining", retry_after=1.0)
        frontend.models.cards()
        return Reply(body=b"{}")

    async def measured(_: Call) -> Reply:
        body, kind = metrics()
        return Reply(body=body, content_type=kind)

    return [
        *assets.routes(),
        Route(method="GET", path="/openapi.json", shape=TEI, summary="OpenAPI", open=True, serve=tells),
        Route(method="GET", path="/docs", shape=TEI, summary="Its page", open=True, serve=shows),
        Route(method="GET", path="/health", shape=TEI, summary="Whether a model is served", open=True, serve=health),
        Route(method="GET", path="/metrics", shape=TEI, summary="For Prometheus", counts=False, serve=measured),
    ]
