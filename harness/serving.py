"""Runs a program that starts processes, and stops them however it ends; `make serve` is one, which runs a pair."""

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from harness.member import ServiceProcess
from harness.stack import stack

T = TypeVar("T")

LAST_LINES = 5
"""Lines of the log that are shown for a process that ended."""
MEANINGS = {
    0: "it was told to stop by somebody else",
    2: "a setting or the model was refused; its last line says which",
    os.EX_UNAVAILABLE: "its device is lost; it has to be started again",
    -signal.SIGKILL: "SIGKILL: by hand, or by the system for want of memory",
}


async def serve(model: str, worker: str, frontend: str, http: str = "", devices: Sequence[str] = ()) -> int:
    """Runs a pair; returns 0 after Ctrl-C or SIGTERM, 1 if a process ended by itself. Restarts nothing.

    `devices`: a worker for each; the first listens on `worker`, each other one on the next port.
    """
    starting = f"{len(devices)} workers" if len(devices) > 1 else "a worker"
    print(f"Starting {starting} with {model} and a frontend ...", flush=True)
    worker_settings, frontend_settings = {"listen": worker}, {"listen": frontend, "http-listen": http}
    with ExitStack() as stopping:
        async with stack(model, devices=devices, worker=worker_settings, frontend=frontend_settings) as pair:
            further = {f"worker {number}": process for number, process in enumerate(pair.workers[1:], 2)}
            members = {"worker": pair.worker, "frontend": pair.frontends[0], **further}
            lines = [f"{name} {member.address} (process {member.pid})" for name, member in members.items()]
            for line in lines[2:]:
                print(f"Also {line}.", flush=True)
            lines[2:] = [f"HTTP {pair.frontends[0].http_url}"] if http else []
            print(f"Ready: {', '.join(lines)}. Ctrl-C stops.", flush=True)
            ended = await first_to_end(members, stopping.enter_context(stop_signals(signal.SIGTERM, signal.SIGINT)))
            print(f"{ended}\nStopping ..." if ended else "Stopping ...", flush=True)
    return 1 if ended else 0


async def first_to_end(members: Mapping[str, ServiceProcess], stop: asyncio.Event) -> str:
    """Describes the first process that ends by itself; "" if `stop` was set before."""
    stopping = asyncio.create_task(stop.wait())
    ends = {asyncio.create_task(member.ended()): name for name, member in members.items()}
    await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        message = ""
    else:
        status, name = next((ended.result(), name) for ended, name in ends.items() if ended.done())
        message = "\n".join(
            [f"The {name} ended by itself with status {status}: {meaning(status)}.", *members[name].log[-LAST_LINES:]]
        )
    for task in (stopping, *ends):
        task.cancel()
    await asyncio.wait([stopping, *ends])
    return message


def meaning(status: int) -> str:
    """Describes an exit status, which is negative for a signal."""
    if status in MEANINGS:
        return MEANINGS[status]
    if status < 0:
        return f"{signal.Signals(-status).name}, a signal"
    return "it failed; its last lines say how"


@contextmanager
def stop_signals(*numbers: signal.Signals) -> Iterator[asyncio.Event]:
    """Yields an event that the first of these signals sets.

    Each further signal cancels the current task, so that processes which it is stopping are killed.
    """
    signalled, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def on_signal() -> None:
        if signalled.is_set():
            task.cancel()
        signalled.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield signalled
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but SIGTERM and SIGINT (Ctrl-C) cancel `main`, so that it can stop what it started.

    Raises SystemExit after that, with the status that shells report for a process which the signal ended: 143 or 130.
    """
    received: list[signal.Signals] = []

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, cancel, number)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise SystemExit(128 + (received[0] if received else signal.SIGTERM)) from None
