"""The door http: routes, bodies, callers, limits and errors. Without a port; see tests/e2e for one."""

import asyncio
import base64
import json

import numpy as np
import pytest
from asgi import JSON, Door, Worker

from frontend_service.doors.http import arrival, body
from frontend_service.doors.http.body import Body
from shared.admission import Bounds
from shared.caller import Caller, Quota
from shared.calls import Calls
from shared.errors import Internal, InvalidInput, Overloaded, SelvageError, Unauthenticated, WorkerUnavailable
from shared.jobs import Priority

EMBED = "/v1/embeddings"


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def door(worker: Worker) -> Door:
    return Door(worker)


async def test_vectors_as_numbers_and_as_bytes(door: Door) -> None:
    """Numbers are as short as float32 allows, so that both are the same vector, bit for bit."""
    asked = {"model": "fake", "input": ["a", "b c"]}
    numbers = (await door.ask(EMBED, asked)).json
    raw = (await door.ask(EMBED, asked | {"encoding_format": "base64"})).json
    assert [each["index"] for each in numbers["data"]] == [0, 1]
    for one, other, tokens in zip(numbers["data"], raw["data"], (3, 4), strict=True):
        row = np.frombuffer(base64.b64decode(other["embedding"]), dtype="<f4")
        assert (row == np.float32(tokens) + np.float32(0.1)).all()
        assert (np.array(one["embedding"], dtype=np.float32) == row).all()
    assert numbers["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert (numbers["object"], numbers["model"]) == ("list", "fake")
    assert b"3.1," in (await door.ask(EMBED, asked)).body


async def test_every_reply_names_its_request(door: Door) -> None:
    """By the caller's own id where it gave one; errors too."""
    told = await door.ask(EMBED, {"input": "a"}, headers=[*JSON, ("x-request-id", "mine")])
    assert told.headers["x-request-id"] == "mine"
    assert "compute;dur=" in told.headers["server-timing"]
    assert len((await door.ask(EMBED, b"{")).headers["x-request-id"]) == 32


async def test_who_calls_is_told_to_the_worker(door: Door, worker: Worker) -> None:
    """Fairness key, priority and time by the same headers as over gRPC; else the caller's host."""
    await door.ask(EMBED, {"input": "a"})
    headers = [("selvage-key", "tenant"), ("selvage-priority", "bulk"), ("selvage-timeout", "2.5")]
    await door.ask(EMBED, {"input": "a"}, headers=[*JSON, *headers])
    first, second = worker.jobs
    assert (first.key, first.priority) == ("ipv4:10.0.0.7", Priority.DEFAULT)
    assert (second.key, second.priority) == ("tenant", Priority.BULK)
    assert first.remaining is not None
    assert second.remaining is not None
    assert 4.0 < first.remaining <= 5.0
    assert 1.5 < second.remaining <= 2.5


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        (EMBED, b"", 400, "the body is no JSON"),
        (EMBED, b"\xff\xfe", 400, "the body is no JSON"),
        (EMBED, b'{"input": "\\ud800"}', 400, "the body is no JSON"),
        (EMBED, b"[" * 100_000, 400, "Expected `object`"),
        (EMBED, b'{"input": "a", "deep": ' + b"[" * 50_000, 400, "nested too deeply"),
        (EMBED, b"[]", 400, "Expected `object`"),
        (EMBED, {}, 400, "input is missing"),
        (EMBED, {"input": []}, 400, "input is empty"),
        (EMBED, {"input": [[]]}, 400, "input[0] has no ids"),
        (EMBED, {"input": ["a", 1]}, 400, "input[1] is of another kind"),
        (EMBED, {"input": [[1, "a"]]}, 400, "input[0][1]: Expected `int`"),
        (EMBED, {"input": [1, -1]}, 400, "input[1]: Expected `int` >= 0"),
        (EMBED, {"input": [2**31]}, 400, "input[0]: Expected `int` <="),
        (EMBED, {"input": [[999]]}, 400, "input[0]"),
        (EMBED, {"input": None}, 400, "input: Expected"),
        (EMBED, {"input": "a", "dimensions": 0}, 400, "dimensions: Expected `int` >= 1"),
        (EMBED, {"input": "a", "dimensions": 9}, 400, "dimensions is 9"),
        (EMBED, {"input": "a", "encoding_format": "hex"}, 400, "encoding_format: Invalid enum value"),
        (EMBED, {"input": "a", "input_type": "poem"}, 400, "input_type is 'poem'"),
        (EMBED, {"input": "a b c d e f g h i j k"}, 400, "input[0]"),
        (EMBED, {"input": "a", "model": "other"}, 404, "no model is called"),
        ("/v2/embed", {"texts": []}, 400, "texts is empty"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["float3"]}, 400, "embedding_types[0]: Invalid enum"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 9}, 400, "output_dimension is 9"),
        ("/v2/rerank", {"query": "a", "documents": []}, 400, "documents is empty"),
        ("/v2/rerank", {"query": "a", "documents": ["b", {"title": "c"}]}, 400, "documents[1].text is missing"),
        ("/v2/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, 400, "top_n: Expected `int` >= 1"),
        ("/rerank", {"query": "a", "texts": []}, 422, "texts is empty"),
        ("/rerank", {"query": "a"}, 422, "texts is missing"),
        ("/embed", b"{", 400, "the body is no JSON"),
        ("/embed", {"inputs": ["a", ""]}, 422, "inputs[1] is empty"),
        ("/embed", {"inputs": "a b c d e f g h i j k"}, 413, "inputs[0]"),
        ("/embed_sparse", {"inputs": "a"}, 424, "the model has no SPARSE output"),
        ("/predict", {"inputs": "a"}, 424, "the model is not for CLASSIFY"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "inputs[0] has 3 entries"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, 422, "inputs[1] has 2 entries"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 422, "inputs.sentences is empty"),
        ("/tokenize", {"inputs": []}, 422, "inputs is empty"),
        ("/decode", {"ids": []}, 422, "ids is empty"),
        ("/decode", {"ids": [[99999]]}, 422, "ids[0]"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, 400, "pairs need as many text_2 as text_1"),
        ("/score", {"text_1": [], "text_2": ["c"]}, 400, "text_1 is empty"),
        ("/pooling", {"input": "a", "task": "sing"}, 400, "task: Invalid enum value"),
        ("/classify", {"input": []}, 400, "input is empty"),
    ],
)
async def test_bad_input_is_told_in_the_words_of_the_shape(
    door: Door, path: str, body: object, status: int, told: str
) -> None:
    """The field by the name that this shape has for it."""
    reply = await door.ask(path, body)
    assert reply.status == status, reply.body
    assert told in message_of(path, reply.json)
    assert reply.headers["content-type"] == "application/json"


def message_of(path: str, told: dict[str, object]) -> str:
    """And that nothing else of the shape is missing."""
    if path.startswith("/v2/"):
        assert set(told) == {"message"}
        return str(told["message"])
    error = told["error"]
    if isinstance(error, dict):
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["message"])
    assert set(told) == {"error", "error_type"}
    return str(error)


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
    door: Door, worker: Worker, error: Exception, status: int, kind: str, tei_kind: str, headers: dict[str, str]
) -> None:
    """With the time after which to try again; a bug's own words stay in the log."""
    worker.fails = error
    openai, tei = await door.ask(EMBED, {"input": "a"}), await door.ask("/embed", {"inputs": "a"})
    assert (openai.status, tei.status) == (status, status)
    assert openai.json["error"]["type"] == kind
    assert tei.json["error_type"] == tei_kind
    assert headers.items() <= openai.headers.items()
    assert b"a bug" not in openai.body
    assert door.seen == [(f"POST {EMBED}", status), ("POST /embed", status)]


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/nothing", "GET", (), 404),
        ("/v1/embeddings/x", "POST", JSON, 404),
        ("/v1/models/other", "GET", (), 404),
        (EMBED, "GET", (), 405),
        (EMBED, "DELETE", (), 405),
        ("/health", "POST", (), 405),
        (EMBED, "POST", (("content-type", "text/plain"),), 415),
        (EMBED, "POST", (*JSON, ("content-encoding", "gzip")), 415),
        (EMBED, "POST", (*JSON, ("content-length", "70000000000")), 413),
        (EMBED, "POST", (*JSON, ("selvage-timeout", "soon")), 400),
        (EMBED, "POST", (*JSON, ("selvage-timeout", "nan")), 400),
        (EMBED, "POST", (*JSON, ("selvage-priority", "soon")), 400),
    ],
)
async def test_what_is_refused_before_the_body_is_read(
    door: Door, path: str, method: str, headers: tuple[tuple[str, str], ...], status: int
) -> None:
    """So the body could be anything."""
    told = await door.ask(path, b"{}", method=method, headers=headers)
    assert told.status == status, told.body
    assert ("allow" in told.headers) == (status == 405)
    if path.startswith("/v1/"):
        assert told.json["error"]["message"]


async def test_a_body_in_pieces_is_held_against_the_limit_as_it_comes(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length is not told before."""
    raw = json.dumps({"input": "a"}).encode()
    assert (await door.ask(EMBED, parts=[raw[:5], raw[5:], b""])).status == 200
    monkeypatch.setattr(arrival, "BODY_BYTES", 8)
    told = await door.ask(EMBED, parts=[raw[:5], raw[5:], b""])
    assert told.status == 413
    assert door.calls.admission.size == 0


async def test_a_caller_who_leaves_cancels_its_job(door: Door, worker: Worker) -> None:
    """And is not answered; the next one is."""
    worker.go_on.clear()
    leaves = asyncio.Event()
    asking = asyncio.create_task(door.ask(EMBED, {"input": "a"}, leaves=leaves))
    await worker.reached.wait()
    leaves.set()
    told = await asyncio.wait_for(asking, 5)
    assert (told.status, worker.cancelled, door.seen) == (0, 1, [])
    assert door.calls.admission.requests == 0
    worker.go_on.set()
    assert (await door.ask(EMBED, {"input": "a"})).status == 200


async def test_a_caller_who_leaves_while_it_sends_is_no_error(door: Door) -> None:
    leaves = asyncio.Event()
    leaves.set()
    told = await door.ask(EMBED, method="POST", parts=[], body=None, headers=JSON, leaves=leaves)
    assert told.status == 400  # an empty body is one that has ended
    sending = door.ask(EMBED, parts=[b'{"in', b""], leaves=leaves)
    assert (await sending).status == 400


async def test_too_many_requests_are_refused_unread(worker: Worker) -> None:
    """Like over gRPC: one place, and the second caller is told when to try again."""
    door = Door(worker, Calls(timeout=5.0, bounds=Bounds(requests=1)))
    worker.go_on.clear()
    first = asyncio.create_task(door.ask(EMBED, {"input": "a"}))
    await worker.reached.wait()
    second = await door.ask(EMBED, b"not even JSON")
    assert (second.status, second.headers["retry-after"]) == (429, "1")
    worker.go_on.set()
    assert (await first).status == 200


async def test_bytes_at_once_are_bounded(worker: Worker) -> None:
    """Those that have come: what a head promises holds no room."""
    door = Door(worker, Calls(timeout=5.0, bounds=Bounds(size=100)))
    worker.go_on.clear()
    never = asyncio.create_task(door.ask(EMBED, method="POST", parts=[b"{", b""], stays_silent=True))
    first = asyncio.create_task(door.ask(EMBED, {"input": "a"}))
    await worker.reached.wait()
    assert (await door.ask(EMBED, {"input": "a" * 99})).status == 429
    worker.go_on.set()
    assert (await first).status == 200
    never.cancel()
    await asyncio.wait([never])
    assert door.calls.admission.size == 0


async def test_a_body_must_arrive_in_time(worker: Worker) -> None:
    """However long its caller would wait; it counts as slow meanwhile."""
    door = Door(worker, Calls(timeout=5.0, bounds=Bounds(read_seconds=0.2, slow_reads=1)))
    headers = [*JSON, ("selvage-timeout", "3000")]
    slow = asyncio.create_task(door.ask(EMBED, headers=headers, parts=[b"{"] * 100, pause=0.01))
    await asyncio.sleep(0.1)
    assert door.calls.admission.reads.slow == 1
    assert (await door.ask(EMBED, parts=[b"{"] * 100, pause=0.01)).status == 429
    assert (await slow).status == 504
    assert door.calls.admission.refused["read_seconds"] == 1
    assert (door.calls.admission.reads.slow, door.calls.admission.size) == (0, 0)


async def test_json_that_would_become_far_more_in_memory_is_not_read(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are counted outside of strings only."""
    monkeypatch.setattr(body, "MOST_ENTRIES", 50)
    monkeypatch.setattr(body, "MOST_LISTS", 20)
    for content in ([1] * 60, [[]] * 30):
        told = await door.ask(EMBED, {"input": content})
        assert (told.status, "the body has more than" in told.json["error"]["message"]) == (400, True)
    assert (await door.ask(EMBED, {"input": ', [ { \\" ' * 90, "truncate_prompt_tokens": -1})).status == 200
    assert (await door.ask(EMBED, {"input": ["a"] * 40})).status == 200


@pytest.mark.parametrize("begins", ['"' + '\\"' * 2_000_000, '"' + '\\"' * 2_000_000 + "\\", '"" ' * 2_000_000])
def test_strings_that_never_end_are_passed_once(begins: str) -> None:
    """However many quotes are in them: else each would be tried as the beginning of another one, for hours."""
    raw = b"," * (body.MOST_ENTRIES // 2) + begins.encode() + b"," * body.MOST_ENTRIES
    with pytest.raises(InvalidInput):
        Body(dict).read(raw)


async def test_a_caller_that_reads_slowly_is_let_go(worker: Worker) -> None:
    """Though it reads something now and then."""
    door = Door(worker, Calls(timeout=5.0, bounds=Bounds(read_seconds=0.2)))
    aborted = asyncio.Event()
    told = await door.ask(EMBED, {"input": ["a"] * 1500}, reads=False, abort=aborted.set)
    assert told.status == 200
    assert aborted.is_set()
    assert door.calls.admission.unread == 0


async def test_a_large_reply_counts_until_it_has_left(door: Door, worker: Worker) -> None:
    """As unread; and is not sent where too much is."""
    asked = {"input": ["a"] * 1500}
    assert (await door.ask(EMBED, asked)).status == 200
    assert door.calls.admission.unread == 0
    held = door.calls.admission.hold_reply(64 * 1024 * 1024)
    told = await door.ask(EMBED, asked)
    assert (told.status, told.json["error"]["type"]) == (429, "rate_limit_error")
    assert door.seen[-1] == (f"POST {EMBED}", 429)
    held()


async def test_a_model_may_have_slashes_in_its_name() -> None:
    door = Door(Worker(id="BAAI/bge-m3"))
    assert (await door.ask("/v1/models/BAAI/bge-m3")).json["id"] == "BAAI/bge-m3"
    assert (await door.ask("/v1/models/BAAI/other")).status == 404


async def test_who_needs_a_key() -> None:
    """All that asks for something; health and what describes the door do not."""

    def identify(caller: Caller) -> Caller:
        if caller.secret != "right":
            raise Unauthenticated("an API key is needed")
        return Caller(method=caller.method, request_id=caller.request_id, quota=Quota(1))

    door = Door(Worker(), Calls(timeout=5.0, identify=identify), keys=True)
    for path in ("/health", "/docs", "/openapi.json"):
        assert (await door.ask(path)).status == 200
    for path in ("/v1/models", "/info", "/metrics"):
        assert (await door.ask(path)).status == 401
    told = await door.ask(EMBED, {"input": "a"}, headers=[*JSON, ("authorization", "Bearer wrong")])
    assert (told.status, told.headers["www-authenticate"]) == (401, "Bearer")
    assert told.json["error"]["code"] == "invalid_api_key"
    right = [*JSON, ("authorization", "Bearer right")]
    assert (await door.ask(EMBED, {"input": "a"}, headers=right)).status == 200
    assert (await door.ask("/openapi.json")).json["security"] == [{"key": []}]


async def test_health_follows_the_models_and_the_drain(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await door.ask("/health")).status == 200
    door.draining = True
    assert (await door.ask("/health")).status == 503
    door.draining = False

    def none() -> None:
        raise WorkerUnavailable("no worker")

    monkeypatch.setattr(door.frontend.models, "cards", none)
    assert (await door.ask("/health")).status == 503
    assert (await door.ask("/v1/models")).status == 503


async def test_a_drain_refuses_new_calls(door: Door) -> None:
    door.calls.refuse()
    told = await door.ask(EMBED, {"input": "a"})
    assert (told.status, told.headers["retry-after"]) == (503, "1")


async def test_what_the_door_tells_of_itself(door: Door) -> None:
    """Every route that takes something is in the document, its fields on the page; HEAD is GET without a body."""
    document = (await door.ask("/openapi.json")).json
    taking = {route.path for route in door.app.routes if route.takes is not None}
    assert taking <= set(document["paths"])
    assert "/v1/models/{model}" in document["paths"]
    docs = await door.ask("/docs")
    assert docs.headers["content-type"] == "text/html; charset=utf-8"
    assert b"truncate_prompt_tokens" in docs.body
    assert b"//" not in docs.body.replace(b"<!doctype html>", b"")
    assert (await door.ask("/metrics")).body == b"figures 1\n"
    assert (await door.ask("/health", method="HEAD")).status == 200


def test_every_error_has_a_status_of_its_own_kind() -> None:
    """None falls through to 500 but those that are ours."""
    from frontend_service.doors.http.errors import status_of
    from shared.errors import error_classes

    found = {reason: status_of(kind("x")) for reason, kind in error_classes().items()}
    assert {reason for reason, status in found.items() if status >= 500} == {
        "INTERNAL",
        "WORKER_UNAVAILABLE",
        "GIVEN_BACK",
        "DEADLINE_EXCEEDED",
    }
    assert all(issubclass(kind, SelvageError) for kind in error_classes().values())
