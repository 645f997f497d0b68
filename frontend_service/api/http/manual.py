"""The OpenAPI document as a page for a person: plain HTML, which loads nothing."""

import base64
import hashlib
import json
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid #8888; padding: 0.5rem 0 1rem; }
h2 { font-size: 1.1rem; }
code, pre { font: 0.9rem/1.4 ui-monospace, monospace; }
pre { overflow: auto; background: #8882; padding: 0.5rem; }
table { border-collapse: collapse; }
td, th { text-align: left; vertical-align: top; padding: 0.1rem 1rem 0.1rem 0; }
"""
HEADERS = (
    (
        "content-security-policy",
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("referrer-policy", "no-referrer"),
)
"""Headers that allow the page no content but its style, which is named by its hash."""
JSON = "application/json"


def page(document: dict[str, Any]) -> str:
    """The page of all operations, with their bodies and examples of their replies."""
    schemas = document["components"]["schemas"]
    sections = [
        _section(path, method, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    title = escape(document["info"]["title"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} over HTTP</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title} over HTTP</h1>
<p>{escape(document["info"]["description"])} The same as <a href="openapi.json">OpenAPI</a>, for programs.</p>
{"".join(sections)}
</body>
</html>
"""


def _section(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    body = operation.get("requestBody")
    schema = body["content"][JSON]["schema"] if body else {"anyOf": []}
    bodies = "<p>or</p>\n".join(_fields(body_schema, schemas) for body_schema in schema.get("anyOf", [schema]))
    reply = operation["responses"]["200"]["content"].get(JSON, {})
    example = f"<pre>{escape(json.dumps(reply['example'], indent=1))}</pre>\n" if "example" in reply else ""
    return f"""<section>
<h2><code>{method.upper()} {escape(path)}</code></h2>
<p>{escape(operation["summary"])}</p>
{bodies}{example}</section>
"""


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    struct = schemas[schema["$ref"].rpartition("/")[2]]
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field, schemas))}</td>"
        f"<td>{'needed' if name in struct.get('required', ()) else escape(_default(field))}</td></tr>"
        for name, field in struct["properties"].items()
    )
    about = f"<p>{escape(struct['description'])}</p>\n" if "description" in struct else ""
    return f"{about}<table><tr><th>Field</th><th>What</th><th>Default</th></tr>{rows}</table>\n"


def _default(field: dict[str, Any]) -> str:
    return json.dumps(field["default"]) if field.get("default") is not None else ""


def _kind(field: dict[str, Any], schemas: dict[str, Any]) -> str:
    """The type of a field in words."""
    if "description" in field:
        return str(field["description"])
    if "$ref" in field:
        inner = schemas[field["$ref"].rpartition("/")[2]]
        return "{" + ", ".join(inner["properties"]) + "}" if "properties" in inner else _kind(inner, schemas)
    if "anyOf" in field:
        return " or ".join(_kind(choice, schemas) for choice in field["anyOf"] if choice.get("type") != "null")
    if "enum" in field:
        return ", ".join(json.dumps(value) for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_kind(field['items'], schemas)}" if field.get("items") else "list"
    return str(field.get("type", "anything"))
