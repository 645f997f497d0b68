"""The HTTP API: routes, replies, callers, errors, what it tells of itself. Without a port; see tests/e2e for one."""

import pytest
from asgi import JSON, HttpApi, Worker, api_of
from structlog.testing import capture_logs
from wire import refuses_strangers

from shared.errors import Internal, Overloaded, WorkerUnavailable
from shared.jobs import Priority

EMBED = "/v1/embeddings"


async def test_every_reply_names_its_request(api: HttpApi) -> None:
    """By the caller's own id where it gave one; errors too. Numbers are as short as float32 allows."""
    reply = await api.ask(EMBED, {"input": "a"}, headers=[*JSON, ("x-request-id", "mine")])
    assert reply.headers["x-request-id"] == "mine"
    assert "compute;dur=" in reply.headers["server-timing"]
    assert b"3.1," in reply.body
    assert len((await api.ask(EMBED, b"{")).headers["x-request-id"]) == 32


async def test_who_calls_is_told_to_the_worker(api: HttpApi, worker: Worker) -> None:
    """Fairness key, priority and time by the same headers as over gRPC; else the caller's host."""
    await api.ask(EMBED, {"input": "a"})
    headers = [("selvage-key", "tenant"), ("selvage-priority", "bulk"), ("selvage-timeout", "250.5")]
    await api.ask(EMBED, {"input": "a"}, headers=[*JSON, *headers])
    first, second = worker.jobs
    assert (first.key, first.priority) == ("ipv4:10.0.0.7", Priority.DEFAULT)
    assert (second.key, second.priority) == ("tenant", Priority.BULK)
    assert first.remaining is not None
    assert second.remaining is not None
    assert 300 < first.remaining <= 600
    assert 100 < second.remaining <= 250.5


@pytest.mark.parametrize(
    ("error", "status", "kind", "tei_kind", "headers"),
    [
        (Overloaded("full", retry_after=0.25), 429, "rate_limit_error", "Overloaded", {"retry-after": "1"}),
        (Overloaded("full", retry_after=2.1), 429, "rate_limit_error", "Overloaded", {"retry-after-ms": "2100"}),
        (WorkerUnavailable("gone"), 503, "service_unavailable_error", "Unhealthy", {}),
        (Internal("oops"), 500, "server_error", "Backend", {}),
        (RuntimeError("a bug"), 500, "server_error", "Backend", {}),
    ],
)
async def test_what_a_worker_raises(
    api: HttpApi, worker: Worker, error: Exception, status: int, kind: str, tei_kind: str, headers: dict[str, str]
) -> None:
    """With the time after which to try again; a bug's own words stay in the log."""
    worker.fails = error
    with capture_logs():  # to print a trace takes seconds
        openai, tei = await api.ask(EMBED, {"input": "a"}), await api.ask("/embed", {"inputs": "a"})
    assert (openai.status, tei.status) == (status, status)
    assert openai.json["error"]["type"] == kind
    assert tei.json["error_type"] == tei_kind
    assert headers.items() <= openai.headers.items()
    assert b"a bug" not in openai.body
    assert api.seen == [(f"POST {EMBED}", status), ("POST /embed", status)]


@pytest.mark.parametrize("path", ["/v1/embeddings/", "//v1/embeddings", "/v1//embeddings", "//v1///embeddings//"])
async def test_slashes_by_accident_change_no_path(path: str) -> None:
    """As `base_url` with a slash at its end and a path with one at its start make them."""
    assert (await api_of().ask(path, {"input": "a"})).json["data"][0]["index"] == 0
    refused = await api_of().ask(path, {"input": []})
    assert refused.json["error"]["param"] == "input"
    assert (await api_of().ask(path, method="GET", body=b"{}")).headers["allow"] == "POST"


async def test_every_name_of_a_model_is_listed() -> None:
    """Clients look for the name that they were told, with its slashes; the names have one root, which replies tell."""
    api = HttpApi(Worker(id="bge-m3", aliases=("BAAI/bge-m3", "embedder")))
    listed = (await api.ask("/v1/models")).json["data"]
    assert [(model["id"], model["root"]) for model in listed] == [
        ("bge-m3", "bge-m3"),
        ("BAAI/bge-m3", "bge-m3"),
        ("embedder", "bge-m3"),
    ]
    assert (await api.ask("/models")).json == (await api.ask("/v1/models")).json
    for model in listed:
        for prefix in ("/v1", ""):
            assert (await api.ask(f"{prefix}/models/{model['id']}")).json == model
            assert (await api.ask(f"{prefix}/models/{model['id']}/x")).status == 404
        assert (await api.ask(EMBED, {"input": "a", "model": model["id"]})).json["model"] == "bge-m3"


async def test_who_needs_a_key() -> None:
    """All that asks for something; health and what describes the API do not."""

    api = HttpApi(Worker(), refuses_strangers(), keys=True)
    for path in ("/health", "/ping", "/docs", "/openapi.json"):
        assert (await api.ask(path)).status == 200
    for path in ("/v1/models", "/info", "/metrics"):
        assert (await api.ask(path)).status == 401
    reply = await api.ask(EMBED, {"input": "a"}, headers=[*JSON, ("authorization", "Bearer wrong")])
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert reply.json["error"]["code"] == "invalid_api_key"
    right = [*JSON, ("authorization", "Bearer right")]
    assert (await api.ask(EMBED, {"input": "a"}, headers=right)).status == 200
    assert (await api.ask("/openapi.json")).json["security"] == [{"key": []}]


async def test_health_follows_the_models_and_the_drain(api: HttpApi, worker: Worker) -> None:
    """A drain refuses new calls, too."""

    async def statuses() -> set[int]:
        return {(await api.ask(path)).status for path in ("/health", "/ping")}

    assert await statuses() == {200}
    api.draining = True
    assert await statuses() == {503}
    api.draining = False

    worker.is_gone = True
    assert await statuses() == {503}
    assert (await api.ask("/v1/models")).status == 503
    api.calls.refuse()
    reply = await api.ask(EMBED, {"input": "a"})
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")


async def test_what_the_api_tells_of_itself(api: HttpApi) -> None:
    """Every route that takes something is in the document, its fields on the page; HEAD is GET without a body."""
    document = (await api.ask("/openapi.json")).json
    taking = {route.path for route in api.app.routes if route.body_type is not None}
    assert taking <= set(document["paths"])
    assert "/v1/models/{model}" in document["paths"]
    docs = await api.ask("/docs")
    assert docs.headers["content-type"] == "text/html; charset=utf-8"
    assert b"truncate_prompt_tokens" in docs.body
    assert b"//" not in docs.body.replace(b"<!doctype html>", b"")
    assert (await api.ask("/metrics")).body == b"figures 1\n"
    assert (await api.ask("/health", method="HEAD")).status == 200


async def test_the_document_tells_that_null_is_absence(api: HttpApi) -> None:
    """Every field that may be left out may be null, and no other."""
    schemas = (await api.ask("/openapi.json")).json["components"]["schemas"]
    for name, schema in schemas.items():
        if name.endswith("Error"):
            continue
        for field, kind in schema["properties"].items():
            is_any = not {"anyOf", "type", "$ref", "oneOf"} & set(kind)
            may_be_null = is_any or {"type": "null"} in kind.get("anyOf", [])
            assert may_be_null == (field not in schema.get("required", ())), (name, field, kind)
