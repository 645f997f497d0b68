"""The HTTP API: routes, replies, callers, errors, what it tells of itself. Without a port; see tests/e2e for one."""

import base64

import numpy as np
import pytest
from asgi import JSON, HttpApi, Worker

from shared.caller import Caller, Quota
from shared.errors import Internal, Overloaded, Unauthenticated, WorkerUnavailable
from shared.jobs import Priority
from shared.server.calls import Calls

EMBED = "/v1/embeddings"


async def test_vectors_as_numbers_and_as_bytes(api: HttpApi) -> None:
    """Numbers are as short as float32 allows, so that both are the same vector, bit for bit."""
    asked = {"model": "fake", "input": ["a", "b c"]}
    numbers = (await api.ask(EMBED, asked)).json
    raw = (await api.ask(EMBED, asked | {"encoding_format": "base64"})).json
    assert [each["index"] for each in numbers["data"]] == [0, 1]
    for one, other, tokens in zip(numbers["data"], raw["data"], (3, 4), strict=True):
        row = np.frombuffer(base64.b64decode(other["embedding"]), dtype="<f4")
        assert (row == np.float32(tokens) + np.float32(0.1)).all()
        assert (np.array(one["embedding"], dtype=np.float32) == row).all()
    assert numbers["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert (numbers["object"], numbers["model"]) == ("list", "fake")
    assert b"3.1," in (await api.ask(EMBED, asked)).body


async def test_every_reply_names_its_request(api: HttpApi) -> None:
    """By the caller's own id where it gave one; errors too."""
    told = await api.ask(EMBED, {"input": "a"}, headers=[*JSON, ("x-request-id", "mine")])
    assert told.headers["x-request-id"] == "mine"
    assert "compute;dur=" in told.headers["server-timing"]
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
    openai, tei = await api.ask(EMBED, {"input": "a"}), await api.ask("/embed", {"inputs": "a"})
    assert (openai.status, tei.status) == (status, status)
    assert openai.json["error"]["type"] == kind
    assert tei.json["error_type"] == tei_kind
    assert headers.items() <= openai.headers.items()
    assert b"a bug" not in openai.body
    assert api.seen == [(f"POST {EMBED}", status), ("POST /embed", status)]


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_a_model_may_have_slashes_in_its_name(prefix: str) -> None:
    api = HttpApi(Worker(id="BAAI/bge-m3"))
    assert (await api.ask(f"{prefix}/models/BAAI/bge-m3")).json["id"] == "BAAI/bge-m3"
    assert (await api.ask(f"{prefix}/models/BAAI/other")).status == 404
    assert (await api.ask(f"{prefix}/models")).json == (await api.ask("/v1/models")).json


@pytest.mark.parametrize("path", ["/v1/embeddings/", "//v1/embeddings", "/v1//embeddings", "//v1///embeddings//"])
async def test_slashes_by_accident_change_no_path(api: HttpApi, path: str) -> None:
    """As `base_url` with a slash at its end and a path with one at its start make them."""
    assert (await api.ask(path, {"input": "a"})).json["data"][0]["index"] == 0
    refused = await api.ask(path, {"input": []})
    assert refused.json["error"]["param"] == "input"
    assert (await api.ask(path, method="GET", body=b"{}")).headers["allow"] == "POST"


async def test_every_name_of_a_model_is_listed() -> None:
    """Clients look for the name that they were told; the names of a model have one root, which replies tell."""
    api = HttpApi(Worker(id="bge-m3", aliases=("BAAI/bge-m3", "embedder")))
    listed = (await api.ask("/v1/models")).json["data"]
    assert [(model["id"], model["root"]) for model in listed] == [
        ("bge-m3", "bge-m3"),
        ("BAAI/bge-m3", "bge-m3"),
        ("embedder", "bge-m3"),
    ]
    for model in listed:
        assert (await api.ask(f"/v1/models/{model['id']}")).json == model
        assert (await api.ask(EMBED, {"input": "a", "model": model["id"]})).json["model"] == "bge-m3"


async def test_who_needs_a_key() -> None:
    """All that asks for something; health and what describes the API do not."""

    def identify(caller: Caller) -> Caller:
        if caller.secret != "right":
            raise Unauthenticated("an API key is needed")
        return Caller(method=caller.method, request_id=caller.request_id, quota=Quota(1))

    api = HttpApi(Worker(), Calls(timeout=600, identify=identify), keys=True)
    for path in ("/health", "/ping", "/docs", "/openapi.json"):
        assert (await api.ask(path)).status == 200
    for path in ("/v1/models", "/info", "/metrics"):
        assert (await api.ask(path)).status == 401
    told = await api.ask(EMBED, {"input": "a"}, headers=[*JSON, ("authorization", "Bearer wrong")])
    assert (told.status, told.headers["www-authenticate"]) == (401, "Bearer")
    assert told.json["error"]["code"] == "invalid_api_key"
    right = [*JSON, ("authorization", "Bearer right")]
    assert (await api.ask(EMBED, {"input": "a"}, headers=right)).status == 200
    assert (await api.ask("/openapi.json")).json["security"] == [{"key": []}]


async def test_health_follows_the_models_and_the_drain(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {(await api.ask(path)).status for path in ("/health", "/ping")} == {200}
    api.draining = True
    assert {(await api.ask(path)).status for path in ("/health", "/ping")} == {503}
    api.draining = False

    def none() -> None:
        raise WorkerUnavailable("no worker")

    monkeypatch.setattr(api.frontend.models, "cards", none)
    assert {(await api.ask(path)).status for path in ("/health", "/ping")} == {503}
    assert (await api.ask("/v1/models")).status == 503


async def test_a_drain_refuses_new_calls(api: HttpApi) -> None:
    api.calls.refuse()
    told = await api.ask(EMBED, {"input": "a"})
    assert (told.status, told.headers["retry-after"]) == (503, "1")


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
        for field, told in schema["properties"].items():
            may_be_null = {"type": "null"} in told.get("anyOf", []) or not {"anyOf", "type", "$ref", "oneOf"} & set(
                told
            )
            assert may_be_null == (field not in schema.get("required", ())), (name, field, told)
