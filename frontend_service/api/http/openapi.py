"""The OpenAPI document of the door. Format: spec.openapis.org/oas/v3.1.0; schemas by msgspec."""

from collections.abc import Iterable
from typing import Any

import msgspec

from frontend_service.api.http.route import Route

SCHEMAS = "#/components/schemas/{name}"
JSON = "application/json"
NULL = {"type": "null"}
ABOUT = "Embeddings, reranks and labels in the shapes of OpenAI, Cohere, vLLM and text-embeddings-inference."


def openapi(routes: Iterable[Route], *, keys: bool) -> dict[str, Any]:
    """`keys`: whether a key is needed."""
    shown = list(routes)
    kinds = list(dict.fromkeys(kind for route in shown for kind in _bodies(route)))
    bodies, components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS)
    components = {name: _with_absence(schema) for name, schema in components.items()}
    schemas = dict(zip(kinds, bodies, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        path = f"{route.path}{{model}}" if route.has_rest else route.path
        paths.setdefault(path, {})[route.method.lower()] = _operation(
            route, [schemas[kind] for kind in _bodies(route)], keys=keys
        )
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Selvage", "version": "1", "description": ABOUT},
        "paths": paths,
        "components": {"schemas": components | {_error(route): route.dialect.schema for route in shown}},
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _bodies(route: Route) -> tuple[Any, ...]:
    """Structs that may be in a route's body."""
    return () if route.body_type is None else (route.body_type, *route.other_body_types)


def _with_absence(schema: dict[str, Any]) -> dict[str, Any]:
    """An object whose fields may all be null, but for those that are needed; see `leniency`."""
    needed = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    return schema | {"properties": {name: field if name in needed else _or_null(field) for name, field in fields}}


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """A field's schema that takes null too. What it says of itself stays outside."""
    about = {key: field[key] for key in ("description", "default") if key in field}
    what = {key: value for key, value in field.items() if key not in about}
    kinds = what.get("anyOf", [what])
    if not what or NULL in kinds:
        return field
    return about | {"anyOf": [*kinds, NULL]}


def _error(route: Route) -> str:
    """The name of the schema of a route's errors."""
    return f"{route.dialect.name}Error"


def _operation(route: Route, schemas: list[Any], *, keys: bool) -> dict[str, Any]:
    unheard = set() if keys and not route.is_open else {401}
    if not schemas:
        unheard |= {413, 415}  # those are of bodies
    example = {} if route.example is None else {"example": route.example}
    error = {"$ref": SCHEMAS.format(name=_error(route))}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()} {route.path}",
        "responses": {
            "200": {
                "description": "As asked",
                "content": {route.content_type: example} | {kind: {} for kind in route.other_content_types},
            },
            **{
                str(status): {"description": told, "content": {JSON: {"schema": error}}}
                for status, told in route.dialect.statuses.items()
                if status not in unheard
            },
        },
    }
    if schemas:
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    elif route.has_rest:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.is_open and keys:
        operation["security"] = []
    return operation
