"""How released clients of HTTP are asked, what they are asked of, and how each is refused."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from harness.member import ServiceProcess
from support.programs import Program

APIS = {"http-listen": "127.0.0.1:0"}
MODEL, KEY = "tiny-bert", "sv-the-key-of-search"
TEXTS = [("w1 " * (number % 9) + f"w{number} w{number * 7 % 90}") for number in range(40)]
QUERY, DOCUMENTS = "w1 w2", ["w3 w4", "w2 w1 w5", "w8", "w1 w2", "w9 w7 w6"]
BOTH = ("plain", "async")


class Clients:
    """All packages in one process, `tests/clients/http_client.py`, which imports each when it is first asked."""

    def __init__(self, program: Program) -> None:
        self._program = program

    async def ask(self, does: str, url: str, key: str = "any", **asked: Any) -> dict[str, Any]:
        """What it tells: of a success or of an error."""
        return await self._program.ask(does=does, url=url, key=key, **asked)


class Http:
    """A frontend's door http."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def ask(self, path: str, body: Any = None, **options: Any) -> Any:
        """What comes back, of a call that must succeed."""
        method = "GET" if body is None else "POST"
        async with self.session.request(method, self.url + path, json=body, **options) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def rows(self, path: str, field: str, body: Any) -> Any:
        """float32 [N, D]."""
        return np.array([entry[field] for entry in (await self.ask(path, body))["data"]], dtype=np.float32)


def same_bits(told: Any, expected: np.ndarray) -> None:
    assert np.array(told, dtype="<f4").tobytes() == expected.tobytes()


def decoded(told: list[str]) -> np.ndarray:
    """[N, D] float32."""
    return np.array([np.frombuffer(base64.b64decode(each), dtype="<f4") for each in told])


@dataclass(frozen=True, slots=True)
class Way:
    """Of asking for one vector, and how its package says that it may not, or not now."""

    does: str
    asked: dict[str, Any]
    denied: str
    too_many: str


async def brings_its_key(clients: Clients, guarded: ServiceProcess, way: Way) -> None:
    """The right one is answered; a wrong one is an error of the client's own."""
    assert "plain" in await clients.ask(way.does, guarded.http_url, KEY, **way.asked)
    told = await clients.ask(way.does, guarded.http_url, "sv-wrong", **way.asked)
    assert (told["error"], told["status"]) == (way.denied, 401), told
    assert not any("sv-wrong" in line for line in guarded.log)


@asynccontextmanager
async def all_that_the_key_may(member: ServiceProcess) -> AsyncIterator[None]:
    """A request with the key is under way, whose body does not end."""
    host, _, port = member.http_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = ["POST /embed HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {KEY}", "Content-Type: application/json"]
    writer.write("\r\n".join([*head, "Content-Length: 9", "Expect: 100-continue", "", ""]).encode())
    assert b"100" in await reader.readline()  # the frontend waits for the body now
    yield
    writer.write(b"no JSON..")  # the key is free again before this is answered
    assert b"400" in b"".join([await reader.readline(), await reader.readline()])
    writer.close()
    await writer.wait_closed()


async def is_told_that_it_asks_too_much(clients: Clients, guarded: ServiceProcess, way: Way) -> None:
    """And when to come again."""
    async with all_that_the_key_may(guarded):
        told = await clients.ask(way.does, guarded.http_url, KEY, **way.asked)
    assert (told["error"], told["status"], told["retry_after"]) == (way.too_many, 429, "1"), told
