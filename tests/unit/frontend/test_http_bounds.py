"""What the HTTP API lets in and holds: bodies, entries, requests, slow readers, callers who leave."""

import asyncio
import base64
import json

import numpy as np
import pytest
from asgi import JSON, HttpApi, Wide, Worker

from frontend_service.api.http.app import SENT_AT_ONCE
from frontend_service.api.http.fields import MOST_ENTRIES, MOST_LISTS, Body
from frontend_service.api.http.openai import EmbeddingsBody
from shared.errors import InvalidInput, LimitExceeded
from shared.server.admission import Bounds
from shared.server.calls import Calls

EMBED = "/v1/embeddings"


async def test_a_body_in_pieces_is_one_body(api: HttpApi) -> None:
    raw = json.dumps({"input": "a"}).encode()
    assert (await api.ask(EMBED, parts=[raw[:5], raw[5:], b""])).status == 200


async def test_a_caller_who_leaves_cancels_its_job(api: HttpApi, worker: Worker) -> None:
    worker.go_on.clear()
    leaves = asyncio.Event()
    asking = asyncio.create_task(api.ask(EMBED, {"input": "a"}, leaves=leaves))
    await worker.reached.wait()
    leaves.set()
    reply = await asking
    assert (reply.status, worker.cancelled, api.seen) == (0, 1, [])
    assert api.calls.admission.requests == 0
    worker.go_on.set()
    assert (await api.ask(EMBED, {"input": "a"})).status == 200


async def test_a_caller_who_leaves_while_it_sends_is_no_error(api: HttpApi) -> None:
    leaves = asyncio.Event()
    leaves.set()
    assert (await api.ask(EMBED, parts=[b'{"in', b""], leaves=leaves)).status == 400


async def test_too_many_requests_are_refused_unread(worker: Worker) -> None:
    """Like over gRPC: one place, and the second caller is told when to try again."""
    api = HttpApi(worker, Calls(timeout=600, bounds=Bounds(requests=1)))
    worker.go_on.clear()
    first = asyncio.create_task(api.ask(EMBED, {"input": "a"}))
    await worker.reached.wait()
    second = await api.ask(EMBED, b"not even JSON")
    assert (second.status, second.headers["retry-after"]) == (429, "1")
    worker.go_on.set()
    assert (await first).status == 200


async def test_bytes_at_once_are_bounded(worker: Worker) -> None:
    """Those that have come: what a head promises holds no room."""
    api = HttpApi(worker, Calls(timeout=600, bounds=Bounds(size=100)))
    worker.go_on.clear()
    never = asyncio.create_task(api.ask(EMBED, method="POST", parts=[b"{", b""], stays_silent=True))
    first = asyncio.create_task(api.ask(EMBED, {"input": "a"}))
    await worker.reached.wait()
    assert (await api.ask(EMBED, {"input": "a" * 99})).status == 429
    worker.go_on.set()
    assert (await first).status == 200
    never.cancel()
    await asyncio.wait([never])
    assert api.calls.admission.size == 0


async def test_a_body_must_arrive_in_time(worker: Worker) -> None:
    api = HttpApi(worker, Calls(timeout=600, bounds=Bounds(read_seconds=0.2)))
    headers = [*JSON, ("selvage-timeout", "3000")]
    assert (await api.ask(EMBED, headers=headers, parts=[b"{"] * 10_000, pause=0.01)).status == 504
    assert api.calls.admission.refused["read_seconds"] == 1
    assert api.calls.admission.size == 0


def test_json_that_would_become_far_more_in_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what separates its entries: the decoder, which makes an object of each, is never called."""
    embeddings = Body(EmbeddingsBody)
    text = ', [ { \\" ' * MOST_LISTS
    assert embeddings.read(json.dumps({"input": text}).encode()).input == text
    monkeypatch.setattr(embeddings, "_decoder", None)
    spans = b'{"input": ["a"], "spans": [[%b[0, 1]]]}' % (b"[0, 1], " * MOST_LISTS)
    with pytest.raises(LimitExceeded, match="the body has more than 100000 lists and objects"):
        embeddings.read(spans)
    with pytest.raises(LimitExceeded, match="the body has more than 1000000 entries"):
        embeddings.read(b'{"input": [%b1]}' % (b"1, " * (MOST_ENTRIES + 1)))


@pytest.mark.parametrize("begins", ['"' + '\\"' * 300_000, '"' + '\\"' * 300_000 + "\\", '"" ' * 300_000])
def test_strings_that_never_end_are_passed_once(begins: str) -> None:
    """However many quotes are in them: else each would be tried as the beginning of another one, for hours."""
    raw = b"," * (MOST_ENTRIES // 2) + begins.encode() + b"," * MOST_ENTRIES
    with pytest.raises(InvalidInput):
        Body(EmbeddingsBody).read(raw)


async def test_a_caller_that_reads_slowly_is_let_go(worker: Worker) -> None:
    api = HttpApi(worker, Calls(timeout=600, bounds=Bounds(read_seconds=0.2)))
    aborted = asyncio.Event()
    reply = await api.ask(EMBED, {"input": ["a"] * 1500}, reads=False, abort=aborted.set)
    assert reply.status == 200
    assert aborted.is_set()
    assert api.calls.admission.size == 0


async def test_a_large_reply_counts_until_it_has_left(worker: Worker) -> None:
    """And is not sent where too much is held already."""
    api = HttpApi(worker, calls=Calls(timeout=600, bounds=Bounds(size=64 * 1024)))
    body = {"input": ["a"] * 1500}
    assert (await api.ask(EMBED, body)).status == 200
    assert api.calls.admission.size == 0
    held = api.calls.admission.hold_reply(64 * 1024)
    reply = await api.ask(EMBED, body)
    assert (reply.status, reply.json["error"]["type"]) == (429, "rate_limit_error")
    assert api.seen[-1] == (f"POST {EMBED}", 429)
    held()


async def test_megabytes_are_sent_in_parts() -> None:
    """A socket that is full would have all the rest copied."""
    reply = await HttpApi(Wide()).ask(EMBED, {"input": ["a", "b c"], "encoding_format": "base64"})
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in reply.json["data"]]
    assert (np.concatenate(rows) == np.arange(2 * 128 * 1024)).all()
    assert (max(reply.parts), reply.parts[-1]) == (SENT_AT_ONCE, 0)
    assert sum(reply.parts) == int(reply.headers["content-length"]) > 4 * SENT_AT_ONCE
