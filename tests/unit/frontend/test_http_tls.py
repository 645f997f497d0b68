"""TLS of the HTTP API: certificates and authorities that change, for callers with and without a name in mind."""

import asyncio
import base64
import json
import socket
import ssl
from pathlib import Path

import numpy as np
import pytest
from asgi import HttpApi, Wide, Worker
from wire import AFTER, post, serving, told

from frontend_service.api.http.port import HttpServer
from shared import security as fresh
from shared.security import identity
from support.certificates import Authority

HERE = "127.0.0.1"
"""A name of which clients tell nothing when they connect: it is an address."""


async def status(port: int, trusted: Authority, own: tuple[str, str] | None = None) -> bytes:
    """The first line of GET /health, over a connection of its own; empty where the server closed it."""
    context = ssl.create_default_context(cafile=str(trusted.file))
    if own is not None:
        context.load_cert_chain(*own)
    reader, writer = await asyncio.open_connection(HERE, port, ssl=context)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return line


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("old", "new")]
    for each in found:
        each.mkdir()
    return found


async def test_no_session_outlasts_who_signs_for_clients(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was let in before shows its certificate again."""
    monkeypatch.setattr(fresh, "LOOK_SECONDS", 0.0)
    old, new = map(Authority, folders)
    files, own = old.files("server", HERE), old.files("client", "client")
    ca = folders[0] / "clients.pem"
    ca.write_bytes(old.file.read_bytes())
    found = identity(str(files.certificate), str(files.key), str(ca), lambda _: None)
    server = HttpServer(HttpApi(Worker()).app, found, 1.0)
    await server.start(f"{HERE}:0")
    context = ssl.create_default_context(cafile=str(old.file))
    context.load_cert_chain(own.certificate, own.key)

    def ask(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        with (
            socket.create_connection((HERE, server.address[1]), timeout=120) as plain,
            context.wrap_socket(plain, server_hostname=HERE, session=session) as secured,
        ):
            secured.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return secured.recv(4096), secured.session

    try:
        told, session = await asyncio.to_thread(ask, None)
        assert told.startswith(b"HTTP/1.1 200")
        ca.write_bytes(new.file.read_bytes())
        try:
            told, _ = await asyncio.to_thread(ask, session)
        except (ssl.SSLError, ConnectionError):
            told = b""
        assert not told
    finally:
        await server.stop()


@pytest.mark.parametrize("secured", [False, True])
async def test_a_reply_of_megabytes_arrives_whole_and_the_connection_goes_on(
    folders: list[Path], secured: bool
) -> None:
    """It is written in parts, as the caller reads."""
    authority = Authority(folders[0])
    files = authority.files("server", HERE)
    found = identity(str(files.certificate), str(files.key), "", lambda _: None) if secured else None
    context = ssl.create_default_context(cafile=str(authority.file)) if secured else None
    body = json.dumps({"input": ["a", "b c"] * 4, "encoding_format": "base64"}).encode()
    async with serving(HttpApi(Wide()), found) as address:
        large, after = await told(address, post(body=body) + AFTER, tls=context)
    rows = np.array([np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in large.json["data"]])
    assert rows.shape == (8, 128 * 1024)
    assert (np.diff(rows) == 1).all()
    assert after.status == 200
