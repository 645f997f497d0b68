"""All connections of a port, and how they end."""

import asyncio
from typing import Protocol

from shared.server.options import CONNECTIONS


class OpenConnection(Protocol):
    """A connection as its port sees it."""

    def finish(self) -> None:
        """Answers the requests that have arrived, then ends."""

    def abort(self) -> None:
        """Ends at once."""


class OpenConnections:
    """The connections of a port and the tasks that answer their requests. `is_ending`: the port takes no more."""

    def __init__(self, most: int = CONNECTIONS) -> None:
        """`most`: connections at once; further ones are ended."""
        self._most = most
        self.connections: set[OpenConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_ending = False
        self._changed = asyncio.Event()

    @property
    def is_over_full(self) -> bool:
        """Whether there are more connections than there may be."""
        return len(self.connections) > self._most

    def remove(self, connection: OpenConnection) -> None:
        """Removes a connection that is closed or lost."""
        self.connections.discard(connection)
        self._changed.set()

    async def end(self, seconds: float) -> None:
        """Finishes all connections and waits until they have ended; aborts those still open after `seconds`."""
        self.is_ending = True
        for connection in tuple(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(seconds):
                await self._wait_until_empty()
        except TimeoutError:
            for connection in tuple(self.connections):
                connection.abort()
            for task in self.tasks:
                task.cancel()

    async def _wait_until_empty(self) -> None:
        """Returns when no connection is open and no task runs."""
        while self.connections:
            self._changed.clear()
            await self._changed.wait()
        while self.tasks:
            await asyncio.wait(self.tasks)
