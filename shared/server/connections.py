"""The connections of a process: no address holds more of a port's than are left for others, and files suffice for all.

gRPC bounds only how many connections a port has in all, and shows neither their addresses nor idle ones. So a process
looks at its own open files now and then, and ends what is too much by shutting the socket down, which every server
takes as a caller that has gone. Knows no gRPC and no HTTP. Linux only; elsewhere nothing is ended.
"""

import asyncio
import heapq
import os
import resource
import socket
import stat
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from shared.security.trusted_proxies import NO_PROXIES, TrustedProxies, plain_address

CONNECTIONS = 4096
"""Most connections of a port."""
OTHER_FILES = 512
"""Files that a process needs beside its connections: libraries, a link to each worker, pipes."""
LOOK_SECONDS = 0.1
"""Seconds between two looks: a port that one address has filled takes others again after that time."""
IDLE_LOOKS = 20
"""Times as long as a look took is the pause after one that ended nothing."""
FEW = 8
"""Connections that every address may have: many callers with one or two each keep theirs, however full the port is."""
OPEN_FILES = "/proc/self/fd"
ESTABLISHED = 1
"""The first byte of struct tcp_info where both sides may send; linux/tcp.h."""
SINCE_SENT, SINCE_RECEIVED = 44, 52
"""Offsets in struct tcp_info (linux/tcp.h) of the milliseconds since data was last sent, and since it last came."""
INFO_BYTES = 56

Peer = tuple[str, int]
"""The address and port of a caller."""

log = structlog.get_logger("server")


def most_connections(ports: int) -> int:
    """The number of connections that each of so many ports may have: CONNECTIONS, or fewer where files are short.

    Raises the process's own limit of open files as far as it may.
    """
    needed = ports * CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return CONNECTIONS
    return max(16, (soft - OTHER_FILES) // ports)


def too_many(held: Mapping[str, int], most: int, exempt: TrustedProxies = NO_PROXIES) -> dict[str, int]:
    """How many connections each address has too many. `held`: how many it has; `most`: how many all may have.

    The address with the most gives first, until it has no more than are left, or FEW. Addresses in `exempt` never give.
    """
    left = most - sum(held.values())
    largest = [(-count, address) for address, count in held.items() if address not in exempt]
    heapq.heapify(largest)
    surplus: dict[str, int] = defaultdict(int)
    while largest and -largest[0][0] > max(left, FEW):
        count, address = largest[0]
        heapq.heapreplace(largest, (count + 1, address))
        surplus[address] += 1
        left += 1
    return dict(surplus)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPort:
    """A port and the peers whose connections have calls in progress at this moment; those are not ended."""

    port: int
    busy: Callable[[], Collection[Peer]]


class ConnectionShares:
    """Keeps every address within its share of each port's connections."""

    def __init__(self, ports: Sequence[ServedPort], most: int, exempt: TrustedProxies = NO_PROXIES) -> None:
        """`most`: connections of each port; `exempt`: addresses without a share, such as those of proxies."""
        self._ports, self._most, self._exempt = ports, most, exempt
        self._offenders: set[tuple[int, str]] = set()  # of the last look, so that one that goes on is logged once

    async def keep(self) -> None:
        """Ends what is too much, again and again. Never returns."""
        pause, clock = LOOK_SECONDS, asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(pause)
            start, ended = clock(), 0
            try:
                # Below half of the places nobody can have more than are left.
                if sys.platform == "linux" and len(os.listdir(OPEN_FILES)) > self._most // 2:
                    busy = {served.port: frozenset(served.busy()) for served in self._ports}
                    ended = await asyncio.to_thread(self.end_too_many, busy)
            except OSError as error:  # no file is left to look with; servers close what they cannot hold
                log.warning("connections could not be looked at", why=error.strerror)
            # A look takes 20 us a connection: where there is nothing to end, it has a twentieth of a core.
            pause = LOOK_SECONDS if ended else max(LOOK_SECONDS, IDLE_LOOKS * (clock() - start))

    def end_too_many(self, busy: Mapping[int, Collection[Peer]]) -> int:
        """Ends connections that are too many, those first on which nothing has moved for longest; returns how many.

        `busy`: the peers with calls in progress, by port.
        """
        ended, before, self._offenders = 0, self._offenders, set()
        by_port: dict[int, dict[str, list[_OpenConnection]]] = defaultdict(lambda: defaultdict(list))
        for connection in _open_connections(busy.keys()):
            by_port[connection.port][connection.peer[0]].append(connection)
        for port, by_address in by_port.items():
            held = {address: len(connections) for address, connections in by_address.items()}
            for address, count in too_many(held, self._most, self._exempt).items():
                idle = [connection for connection in by_address[address] if connection.peer not in busy[port]]
                idle.sort(key=lambda connection: -connection.idle_milliseconds)
                ended += sum(connection.end() for connection in idle[:count])
                self._offenders.add((port, address))
                if (port, address) not in before:
                    log.warning("connections ended", port=port, address=address, held=held[address], too_many=count)
        return ended


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenConnection:
    """A connection at the time of a look."""

    file: int
    port: int
    peer: Peer
    idle_milliseconds: int

    def end(self) -> bool:
        """Shuts the connection down if it is still the same one; returns whether it was."""
        try:
            with socket.socket(fileno=os.dup(self.file)) as connection:
                if _peer(connection) != self.peer:
                    return False
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended meanwhile
            return False
        return True


def _open_connections(ports: Collection[int]) -> Iterator[_OpenConnection]:
    """All connections that callers have to these ports."""
    for name in os.listdir(OPEN_FILES):
        file = int(name)
        try:
            if not stat.S_ISSOCK(os.fstat(file).st_mode):
                continue
            # A duplicate: the file itself may be closed, and its number be another's, at any time.
            with socket.socket(fileno=os.dup(file)) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                port = connection.getsockname()[1]
                if port in ports and _is_established(connection):
                    idle = _idle_milliseconds(connection)
                    yield _OpenConnection(file=file, port=port, peer=_peer(connection), idle_milliseconds=idle)
        except (OSError, ValueError):  # it has ended meanwhile, or listens and has no peer
            continue


def _peer(connection: socket.socket) -> Peer:
    address, port = connection.getpeername()[:2]
    return str(plain_address(address)), port


def _is_established(connection: socket.socket) -> bool:
    """Whether both sides may send: not after it was shut down, though its file is not closed yet."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)[0] == ESTABLISHED


def _idle_milliseconds(connection: socket.socket) -> int:
    """Milliseconds since anything came or was sent."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    return min(int(struct.unpack_from("I", info, offset)[0]) for offset in (SINCE_SENT, SINCE_RECEIVED))
