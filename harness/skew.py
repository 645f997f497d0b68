"""Two versions side by side, each as the worker of the other's frontend: what is served, and what is refused by name.

    git worktree add ../before COMMIT
    python -m harness.skew ../before

Prints a line for each call of each pair; exits with 1 where an answer differs from that of one version alone, or an
error has no name of ours. Both versions run on this Python's packages.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

from harness.environment import ROOT
from harness.member import MemberFailed, ServiceProcess
from selvage import AsyncClient, errors
from shared.server.services import PUBLIC_SERVICES, WORKER_SERVICES

TEXTS = ["a quiet harbour", "a loud kitchen", "boats"]
UNNAMED = (errors.Internal, errors.Cancelled)
"""Errors that name no reason which a caller could act on."""


async def _streamed(client: AsyncClient) -> Any:
    return np.array([row async for row in client.embed_stream(TEXTS)])


async def _tokenized(client: AsyncClient) -> Any:
    return np.concatenate([text.ids for text in await client.tokenize(TEXTS)])


async def _ranked(client: AsyncClient) -> Any:
    return np.array([document.score for document in await client.rerank("boats", TEXTS)])


CALLS: Mapping[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "embed": lambda client: client.embed(TEXTS),
    "embed of 2,000 texts": lambda client: client.embed(TEXTS * 667),
    "late chunking": lambda client: client.embed([f"{text}. " for text in TEXTS], late_chunking=True),
    "embed_stream": _streamed,
    "rerank": _ranked,
    "tokenize": _tokenized,
}


async def answers(worker: Path, frontend: Path, model: str) -> dict[str, Any]:
    """The answer or the error of each call, of a frontend and a worker of two checkouts."""
    async with AsyncExitStack() as stopping:
        flags = {"model": model, "device": "cpu"}
        holder = ServiceProcess("gpu_worker", WORKER_SERVICES, flags, checkout=worker)
        stopping.push_async_callback(holder.stop)
        await holder.start()
        await holder.wait_ready()
        front = ServiceProcess("frontend_service", PUBLIC_SERVICES, {"worker": holder.address}, checkout=frontend)
        stopping.push_async_callback(front.stop)
        await front.start()
        try:
            await front.wait_ready(20)
        except MemberFailed:
            print(f"  the frontend is not ready: {[event.get('why') for event in front.events if 'why' in event]}")
        results: dict[str, Any] = {}
        async with AsyncClient(front.address, retries=0, timeout=20) as client:
            for name, call in CALLS.items():
                try:
                    results[name] = await call(client)
                except errors.SelvageError as error:
                    results[name] = error
        return results


async def compared(other: Path, model: str) -> bool:
    """Compares all pairs of both checkouts; prints a line for each call. Tells whether all is as it should be."""
    names = {ROOT: "this", other: "other"}
    alone, good = await answers(ROOT, ROOT, model), True
    for worker, frontend in ((other, ROOT), (ROOT, other)):
        for name, answer in (await answers(worker, frontend, model)).items():
            if isinstance(answer, Exception):
                line, well = f"{type(answer).__name__}: {answer}", not isinstance(answer, UNNAMED)
            else:
                well = isinstance(alone[name], np.ndarray) and np.allclose(answer, alone[name], atol=1e-5)
                line = "as alone" if well else "DIFFERS"
            good = good and well
            print(f"worker of {names[worker]}, frontend of {names[frontend]}: {name}: {line}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.skew", description=__doc__)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--model", default=os.environ.get("MODEL", "minilm"), help="default: %(default)s")
    options = parser.parse_args()
    sys.exit(not asyncio.run(compared(options.other.resolve(), options.model)))


if __name__ == "__main__":
    main()
