"""All connections of a port, and how they end."""

import asyncio
from typing import Protocol


class OpenConnection(Protocol):
    """A connection as its port sees it."""

    def finish(self) -> None:
        """Answers the requests that have arrived, then ends."""

    def abort(self) -> None:
        """Ends at once."""


class OpenConnections:
    """The connections of a port and the tasks that answer their requests. `is_ending`: the port takes no more."""

    def __init__(self) -> None:
        self.connections: set[OpenConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_ending = False
        self._changed = asyncio.Event()

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
