"""A model behind its services in this process: `e2e/test_engine.py` holds that two processes give the same numbers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import structlog

from selvage import Engine
from shared.server.options import channel_options
from support.references import Calls


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Calls]:
    """The stubs of its services until the end of the block."""
    try:
        with Engine(folder) as engine:
            async with grpc.aio.insecure_channel(engine.settings.target, options=channel_options()) as channel:
                yield Calls(channel)
    finally:
        structlog.reset_defaults()  # an engine sets it up where nobody has
