"""Connections of the HTTP API: refusals that are read late, TLS, and what a drain answers."""

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from asgi import HttpApi, Wide, Worker
from wire import AFTER, Response, exchange, post, refuses_strangers, responses, serving, statuses

from shared import security
from shared.security import Fresh, Identity, identity
from shared.server.calls import Calls
from support.certificates import Authority

LARGE = 20_000_000


def sent_whole(address: tuple[str, int], pieces: Sequence[bytes], context: ssl.SSLContext | None) -> list[Response]:
    """What a caller gets that sends everything first, and looks only then."""
    with ExitStack() as stack:
        caller = stack.enter_context(socket.create_connection(address, timeout=240))
        if context is not None:
            caller = stack.enter_context(context.wrap_socket(caller, server_hostname=address[0]))
        for piece in pieces:
            caller.sendall(piece)
        raw = bytearray()
        while part := caller.recv(65536):
            raw += part
        return responses(bytes(raw))


@pytest.mark.parametrize(
    ("path", "lines", "calls", "status"),
    [
        (b"/v1/embeddings", (), refuses_strangers(), 401),
        (b"/v1/embeddings", (b"Content-Encoding: gzip",), None, 415),
        (b"/none", (), None, 404),
    ],
)
async def test_a_refusal_reaches_who_reads_only_afterwards(
    path: bytes, lines: tuple[bytes, ...], calls: Calls | None, status: int
) -> None:
    """And the next request of the connection is another one, with a body in one piece or in chunks."""
    async with serving(HttpApi(Worker(), calls)) as address:
        for framing, body in (
            (b"Content-Length: %d" % LARGE, [bytes(LARGE)]),
            (b"Transfer-Encoding: chunked", [b"%x\r\n" % LARGE, bytes(LARGE), b"\r\n0\r\n\r\n"]),
        ):
            head = post(framing, *lines, path=path, body=b"", framed=False)
            pieces = [head, *body, AFTER.replace(b"/v1/models", b"/docs")]
            assert statuses(await asyncio.to_thread(sent_whole, address, pieces, None)) == [status, 200]


async def test_a_body_that_is_too_large_is_told_so() -> None:
    """By its length, or by what has come of it."""
    size = 70_000_000
    head = post(b"Content-Length: %d" % size, body=b"", framed=False)
    chunks = post(b"Transfer-Encoding: chunked", body=b"%x\r\n" % size, framed=False)
    async with serving(HttpApi(Worker())) as address:
        for pieces in ([head, bytes(size), AFTER], [chunks, bytes(size), b"\r\n0\r\n\r\n" + AFTER]):
            assert statuses(await asyncio.to_thread(sent_whole, address, pieces, None)) == [413, 200]


def shown_by(authority: Authority, clients: Path | str = "") -> Fresh[Identity]:
    """A certificate for the port; with `clients` callers need one that this file's authorities signed."""
    files = authority.files("server", "127.0.0.1")
    return identity(str(files.certificate), str(files.key), str(clients), lambda _: None)


async def test_a_refusal_over_tls_reaches_who_reads_only_afterwards(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=str(authority.file))
    head = post(b"Content-Length: %d" % LARGE, path=b"/none", body=b"", framed=False)
    async with serving(HttpApi(Worker()), shown_by(authority)) as address:
        replies = await asyncio.to_thread(sent_whole, address, [head, bytes(LARGE), AFTER], context)
    assert statuses(replies) == [404, 200]


@pytest.mark.parametrize("secured", [False, True])
async def test_a_reply_of_megabytes_arrives_whole_and_the_connection_goes_on(tmp_path: Path, secured: bool) -> None:
    """It is written in parts, as the caller reads."""
    authority = Authority(tmp_path)
    shown = shown_by(authority) if secured else None
    context = ssl.create_default_context(cafile=str(authority.file)) if secured else None
    body = json.dumps({"input": ["a", "b c"] * 4, "encoding_format": "base64"}).encode()
    async with serving(HttpApi(Wide()), shown) as address:
        large, after = await exchange(address, post(body=body) + AFTER, tls=context)
    rows = np.array([np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in large.json["data"]])
    assert rows.shape == (8, 128 * 1024)
    assert (np.diff(rows) == 1).all()
    assert after.status == 200


async def test_no_session_outlasts_who_signs_for_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was let in before shows its certificate again."""
    monkeypatch.setattr(security, "LOOK_SECONDS", 0.0)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = (Authority(tmp_path / name) for name in ("old", "new"))
    client, clients = old.files("client", "client"), tmp_path / "clients.pem"
    clients.write_bytes(old.file.read_bytes())
    context = ssl.create_default_context(cafile=str(old.file))
    context.load_cert_chain(client.certificate, client.key)

    def ask(address: tuple[str, int], session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        with (
            socket.create_connection(address, timeout=120) as plain,
            context.wrap_socket(plain, server_hostname=address[0], session=session) as secured,
        ):
            secured.sendall(AFTER)
            return secured.recv(4096), secured.session

    async with serving(HttpApi(Worker()), shown_by(old, clients)) as address:
        reply, session = await asyncio.to_thread(ask, address, None)
        assert reply.startswith(b"HTTP/1.1 200")
        clients.write_bytes(new.file.read_bytes())
        try:
            reply, _ = await asyncio.to_thread(ask, address, session)
        except (ssl.SSLError, ConnectionError):
            reply = b""
        assert not reply


async def test_a_drain_answers_what_runs_and_closes_what_idles() -> None:
    worker = Worker()
    api = HttpApi(worker)
    async with serving(api) as address:
        idle = await asyncio.open_connection(*address)
        idle[1].write(AFTER.replace(b"Connection: close\r\n", b""))
        assert await idle[0].readuntil(b"\r\n\r\n")
        worker.go_on.clear()
        running = asyncio.create_task(exchange(address, post()))
        await worker.reached.wait()
        asyncio.get_running_loop().call_later(0.3, worker.go_on.set)
    (answer,) = await running
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    idle[1].close()


async def test_a_drain_ends_with_its_time() -> None:
    """What is not answered by then is cut off, and computed no more."""
    worker = Worker()
    worker.go_on.clear()
    async with serving(HttpApi(worker)) as address:
        running = asyncio.create_task(exchange(address, post()))
        await worker.reached.wait()
    assert [answer.status for answer in await running] in ([], [500])
    assert worker.cancelled == 1
