"""The whole API over HTTP: the routes of all dialects, and those that ask no model, such as health.

Also its description: an OpenAPI document, and a page that shows it. Format: spec.openapis.org/oas/v3.1.0; schemas by
msgspec.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from html import escape
from importlib.resources import files
from inspect import cleandoc
from typing import Any

import msgspec

from frontend_service.api.http import cohere, openai, tei, vllm
from frontend_service.api.http.error_replies import TEI, statuses_of
from frontend_service.api.http.routes import HTML, JSON, Endpoint, HttpCall, HttpReply, Route, to_json
from shared.errors import WorkerUnavailable

DIALECTS = (openai, cohere, vllm, tei)
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


SCHEMAS = "#/components/schemas/{name}"
NULL = {"type": "null"}
ABOUT = "Embeddings, reranks and labels in the shapes of OpenAI, Cohere, vLLM and text-embeddings-inference."


def openapi(routes: Iterable[Route], *, keys: bool) -> dict[str, Any]:
    """Describes routes in an OpenAPI document. `keys`: whether callers need an API key."""
    routes = list(routes)
    structs = list(dict.fromkeys(struct for route in routes for struct in _bodies(route)))
    bodies, components = msgspec.json.schema_components(structs, ref_template=SCHEMAS)
    components = {name: _documented(schema) for name, schema in components.items()}
    schemas = dict(zip(structs, bodies, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = f"{route.path}{{model}}" if route.is_prefix else route.path
        paths.setdefault(path, {})[route.method.lower()] = _operation(
            route, [schemas[struct] for struct in _bodies(route)], keys=keys
        )
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Selvage", "version": "1", "description": ABOUT},
        "paths": paths,
        "components": {"schemas": components | {_error_schema(route): route.dialect.schema for route in routes}},
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _bodies(route: Route) -> tuple[Any, ...]:
    """The structs that a route's body may have."""
    return () if route.body_type is None else (route.body_type, *route.other_body_types)


def _documented(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a struct as the document has it: optional fields may be null, see `LenientFields`.

    Its description is the docstring of the struct: docstrings of bodies are read by callers, too.
    """
    required = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    properties = {name: field if name in required else _nullable(field) for name, field in fields}
    description = {"description": cleandoc(schema["description"])} if "description" in schema else {}
    return schema | description | {"properties": properties}


def _nullable(field: dict[str, Any]) -> dict[str, Any]:
    """A field's schema that takes null too. Its description and default stay outside of the alternatives."""
    about = {key: field[key] for key in ("description", "default") if key in field}
    content = {key: value for key, value in field.items() if key not in about}
    alternatives = content.get("anyOf", [content])
    if not content or NULL in alternatives:
        return field
    return about | {"anyOf": [*alternatives, NULL]}


def _error_schema(route: Route) -> str:
    """The name of the schema of a route's errors."""
    return f"{route.dialect.name}Error"


def _operation(route: Route, schemas: list[Any], *, keys: bool) -> dict[str, Any]:
    """Describes a route. `schemas`: those of its bodies."""
    impossible = set() if keys and not route.is_open else {401}
    if not schemas:
        impossible |= {413, 415}  # errors about bodies
    example = {} if route.example is None else {"example": route.example}
    error = {"$ref": SCHEMAS.format(name=_error_schema(route))}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()} {route.path}",
        "responses": {
            "200": {
                "description": "As asked",
                "content": {route.content_type: example},
            },
            **{
                str(status): {"description": meaning, "content": {JSON: {"schema": error}}}
                for status, meaning in statuses_of(route.dialect).items()
                if status not in impossible
            },
        },
    }
    if schemas:
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    elif route.is_prefix:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.is_open and keys:
        operation["security"] = []
    return operation


def page(document: dict[str, Any]) -> str:
    """The document as plain HTML for a person, which loads nothing: the schema and example of every operation."""
    schemas = document["components"]["schemas"]
    operations = "".join(
        f"<h2>{method.upper()} {escape(path)}</h2>\n<p>{escape(operation['summary'])}</p>\n"
        + "".join(f"<pre>{escape(json.dumps(shown, indent=1))}</pre>\n" for shown in _shown(operation, schemas))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    title = escape(document["info"]["title"])
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title} over HTTP</title>
<h1>{title} over HTTP</h1>
<p>{escape(document["info"]["description"])} For programs: <a href="openapi.json">openapi.json</a>.</p>
{operations}</html>
"""


def _shown(operation: dict[str, Any], schemas: dict[str, Any]) -> list[Any]:
    """Each body that an operation takes, with its fields, and an example of the reply."""
    schema = operation["requestBody"]["content"][JSON]["schema"] if "requestBody" in operation else {"anyOf": []}
    structs = [schemas[body["$ref"].rpartition("/")[2]] for body in schema.get("anyOf", [schema])]
    bodies = [{key: struct[key] for key in ("description", "properties") if key in struct} for struct in structs]
    reply = operation["responses"]["200"]["content"].get(JSON, {})
    return [*bodies, *([reply["example"]] if "example" in reply else [])]
