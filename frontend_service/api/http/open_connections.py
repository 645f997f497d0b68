"""Everybody who is connected to a port, and how that ends."""

import asyncio
from typing import Protocol


class OpenConnection(Protocol):
    """A connection, as its port knows it."""

    def finish(self) -> None:
        """Answers the requests that are there, and ends."""

    def abort(self) -> None:
        """Ends at once."""


class OpenConnections:
    """Connections of a port, and the tasks that answer their requests. `is_ending`: no more are taken."""

    def __init__(self) -> None:
        self.connections: set[OpenConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_ending = False
        self._left = asyncio.Event()

    def leave(self, connection: OpenConnection) -> None:
        """It is lost."""
        self.connections.discard(connection)
        self._left.set()

    async def end(self, seconds: float) -> None:
        """Returns once all have their replies and have left; cuts off those that are there after `seconds`."""
        self.is_ending = True
        for connection in tuple(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(seconds):
                await self._empty()
        except TimeoutError:
            for connection in tuple(self.connections):
                connection.abort()
            for task in self.tasks:
                task.cancel()

    async def _empty(self) -> None:
        """Returns when nobody is there, and nothing is being answered."""
        while self.connections:
            self._left.clear()
            await self._left.wait()
        while self.tasks:
            await asyncio.wait(self.tasks)
