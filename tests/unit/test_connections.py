"""The connections of a port: no address has more than are left for others, whatever is opened and left lying."""

import asyncio
import errno
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from shared.security.trusted_proxies import TrustedProxies
from shared.server import connections
from shared.server.calls import Calls
from shared.server.connections import CONNECTIONS, FEW, ConnectionShares, ServedPort, most_connections, too_many
from shared.server.rpc import channel_options
from shared.server.rpc.metadata import peer_of
from shared.server.serving import Server
from support.references import eventually

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
MOST = 16


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 60)), st.integers(1, 120))
def test_afterwards_nobody_has_more_than_are_left(held: dict[str, int], most: int) -> None:
    """And one connection less taken from anybody would not do: the address with the most gives, down to the next."""
    surplus = too_many(held, most)
    after = {address: count - surplus.get(address, 0) for address, count in held.items()}
    left = most - sum(after.values())
    assert all(0 <= count <= max(left, FEW) for count in after.values())
    if surplus:
        assert max(after.values()) + 1 > max(left - 1, FEW)
    for address, count in surplus.items():
        assert count <= held[address]
        assert after[address] >= max(after.values()) - 1


def test_an_address_within_its_share_gives_nothing() -> None:
    assert too_many({"a": 2048}, 4096) == {}
    assert too_many({"a": 2049}, 4096) == {"a": 1}
    assert too_many({"a": 4087, "b": 9}, 4096) == {"a": 4087 - 2043}


def test_an_address_with_few_keeps_them_however_full_the_port_is() -> None:
    held = {str(number): 1 for number in range(5000)} | {"a": FEW, "b": FEW + 1}
    assert too_many(held, 4096) == {"b": 1}


def test_trusted_proxies_give_nothing() -> None:
    """Though they take part of what is left."""
    held = {"10.0.0.1": 3000, "11.0.0.1": 1000}
    assert too_many(held, 4096, TrustedProxies(["10.0.0.0/8"])) == {"11.0.0.1": 452}


@pytest.mark.parametrize(
    ("peer", "read"),
    [
        ("ipv4:10.0.0.7:4711", ("10.0.0.7", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("ipv6:[fd00::7]:4711", ("fd00::7", 4711)),
        ("unix:", ("", 0)),
    ],
)
def test_peers_are_read_as_grpc_writes_them(peer: str, read: tuple[str, int]) -> None:
    assert peer_of(peer) == read


@pytest.mark.parametrize(
    ("soft", "hard", "expected", "raised_to"),
    [
        (1024, 1 << 20, CONNECTIONS, 2 * CONNECTIONS + connections.OTHER_FILES),
        (1 << 20, 1 << 20, CONNECTIONS, None),
        (1024, 4096, (4096 - 512) // 2, 4096),
        (1024, 1024, 256, 1024),
        (-1, -1, CONNECTIONS, None),
        (1024, -1, CONNECTIONS, 2 * CONNECTIONS + connections.OTHER_FILES),
    ],
)
def test_files_suffice_for_all_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int, raised_to: int | None
) -> None:
    """The process raises its own limit; where it may not, there are fewer connections, not a port that takes nobody."""
    limits = list[tuple[int, int]]()
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", lambda _, limit: limits.append(limit))
    assert most_connections(ports=2) == expected
    assert limits == ([] if raised_to is None else [(raised_to, hard)])


@asynccontextmanager
async def taking() -> AsyncIterator[int]:
    """The port of a server that takes connections and never ends one by itself."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def served() -> AsyncIterator[Server]:
    """A gRPC server with health, on a free port."""
    server = Server((), Calls(timeout=600), threads=ThreadPoolExecutor(1), reflect=False, connection_age=False)
    await server.start("127.0.0.1:0")
    try:
        yield server
    finally:
        await server.stop()


async def opened(port: int, count: int, address: str, sockets: ExitStack) -> list[socket.socket]:
    """Idle connections from an address of this machine, which the server has taken."""
    before = len(list(connections._open_connections({port})))
    made = [
        socket.create_connection(("127.0.0.1", port), timeout=120, source_address=(address, 0)) for _ in range(count)
    ]
    for connection in made:
        sockets.callback(connection.close)
    await eventually(lambda: len(list(connections._open_connections({port}))) == before + count)
    return made


def is_open(connection: socket.socket) -> bool:
    """Whether the server has not ended it. What it said meanwhile is read."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@linux
async def test_idle_connections_of_one_address_are_ended_down_to_its_share() -> None:
    """Those of others stay, and so does one with a call in progress, however long nothing has moved on it."""
    async with taking() as port:
        with ExitStack() as sockets:
            greedy = await opened(port, 14, "127.0.0.1", sockets)
            other = await opened(port, 2, "127.0.0.2", sockets)
            busy = {port: {greedy[0].getsockname()}}
            shares = ConnectionShares((), MOST)
            assert await asyncio.to_thread(shares.end_too_many, busy) == 14 - FEW
            await eventually(lambda: Counter(map(is_open, greedy)) == {True: FEW, False: 14 - FEW})
            assert all(map(is_open, [greedy[0], *other]))
            assert await asyncio.to_thread(shares.end_too_many, busy) == 0


@linux
async def test_what_has_lain_idle_for_longest_is_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a connection that comes now, such as a health check from the same address, is served."""
    async with taking() as port:
        with ExitStack() as sockets:
            old = await opened(port, 9, "127.0.0.1", sockets)
            ages = {connection.getsockname()[1]: number for number, connection in enumerate(old, start=1)}
            monkeypatch.setattr(
                connections, "_idle_milliseconds", lambda connection: ages.get(connection.getpeername()[1], 0)
            )
            new = await opened(port, 1, "127.0.0.1", sockets)
            assert await asyncio.to_thread(ConnectionShares((), MOST).end_too_many, {port: ()}) == 2
            await eventually(lambda: not any(map(is_open, old[-2:])))
            assert all(map(is_open, [*old[:-2], *new]))


@linux
async def test_the_time_since_anything_moved_is_that_of_the_kernel() -> None:
    """Milliseconds, on a connection of this machine."""
    async with taking() as port:
        with ExitStack() as sockets:
            await opened(port, 1, "127.0.0.1", sockets)
            [first] = connections._open_connections({port})
            assert 0 <= first.idle_milliseconds < 100_000

            def later() -> int:
                [now] = connections._open_connections({port})
                return now.idle_milliseconds

            await eventually(lambda: later() > first.idle_milliseconds)


@linux
async def test_shares_are_kept_by_themselves_and_a_trusted_proxy_has_none() -> None:
    """One look ends what one address has too many of one port, and leaves the proxy's connections to another."""
    async with taking() as greedy_port, taking() as proxy_port:
        ports = [ServedPort(port=port, busy=list) for port in (greedy_port, proxy_port)]
        with ExitStack() as sockets:
            greedy = await opened(greedy_port, 12, "127.0.0.1", sockets)
            proxy = await opened(proxy_port, 12, "127.0.0.2", sockets)
            keeping = asyncio.create_task(ConnectionShares(ports, MOST, TrustedProxies(["127.0.0.2"])).keep())
            await eventually(lambda: Counter(map(is_open, greedy)) == {True: 8, False: 4})
            assert all(map(is_open, proxy))
            keeping.cancel()


@linux
async def test_a_look_without_a_file_to_look_with_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the process nor the looking."""
    looks = list[int]()

    def fails(path: str) -> list[str]:
        looks.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(connections.os, "listdir", fails)
    keeping = asyncio.create_task(ConnectionShares([], MOST).keep())
    await eventually(lambda: len(looks) > 1)
    assert not keeping.done()
    keeping.cancel()


@linux
async def test_grpc_lets_go_of_what_is_ended_and_takes_others() -> None:
    """Connections that lie idle fill the port; a health check comes through once they are too many."""
    server = Server(
        (), Calls(timeout=600), threads=ThreadPoolExecutor(1), reflect=False, connection_age=False, connections=MOST
    )
    await server.start("127.0.0.1:0")
    port = server.served_port.port
    with ExitStack() as sockets:
        await opened(port, MOST, "127.0.0.1", sockets)
        shares = ConnectionShares([server.served_port], MOST)
        await asyncio.to_thread(shares.end_too_many, {port: ()})
        await eventually(lambda: len(list(connections._open_connections({port}))) <= MOST // 2)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=120, wait_for_ready=True)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await server.stop()


async def test_a_port_knows_who_has_calls_in_progress() -> None:
    """By address and port of the caller; nobody else, and nobody afterwards."""

    async def answer(_: Any, __: Any) -> Any:
        await asyncio.Event().wait()

    async with served() as server:
        handler = grpc.unary_unary_rpc_method_handler(answer, health_pb2.HealthCheckRequest.FromString)
        server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Ask": handler}),))
        address = f"127.0.0.1:{server.served_port.port}"
        assert server.served_port.busy() == []
        async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
            call = channel.stream_stream("/t.T/Ask")()
            await call.write(b"")
            await eventually(lambda: bool(server.served_port.busy()))
            [(host, port)] = server.served_port.busy()
            assert (host, port > 0) == ("127.0.0.1", True)
            call.cancel()
            await eventually(lambda: not server.served_port.busy())
