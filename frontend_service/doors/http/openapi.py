"""The OpenAPI document of the door. Format: spec.openapis.org/oas/v3.1.0; schemas by msgspec."""

from collections.abc import Iterable
from typing import Any

import msgspec

from frontend_service.doors.http.route import Route

SCHEMAS = "#/components/schemas/{name}"
JSON = "application/json"
ABOUT = "Embeddings, reranks and labels in the shapes of OpenAI, Cohere, vLLM and text-embeddings-inference."


def openapi(routes: Iterable[Route], *, keys: bool) -> dict[str, Any]:
    """`keys`: whether a key is needed."""
    shown = list(routes)
    kinds = list(dict.fromkeys(route.takes for route in shown if route.takes is not None))
    bodies, components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS)
    schemas = dict(zip(kinds, bodies, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        path = f"{route.path}{{model}}" if route.takes is None and route.path.endswith("/") else route.path
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas.get(route.takes))
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Selvage", "version": "1", "description": ABOUT},
        "paths": paths,
        "components": {"schemas": components},
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _operation(route: Route, schema: Any) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()} {route.path}",
        "responses": {
            "200": {"description": "As asked", "content": {JSON: {"example": route.gives}}},
            "default": {"description": "An error in the words of this shape", "content": {JSON: {}}},
        },
    }
    if schema is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    elif route.path.endswith("/"):
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation
