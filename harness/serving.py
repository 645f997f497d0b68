"""`make serve`: a pair until it is told to stop, or until one of its processes ends by itself."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from harness.member import Member
from harness.running import told_by
from harness.stack import stack

LAST_LINES = 5
"""Of the log of a process that ended."""
MEANINGS = {
    0: "it was told to stop by somebody else",
    2: "a setting or the model was refused; its last line says which",
    os.EX_UNAVAILABLE: "its device is lost; it has to be started again",
    -signal.SIGKILL: "SIGKILL: by hand, or by the system for want of memory",
}


async def serve(model: str, worker: str, frontend: str, http: str = "", devices: Sequence[str] = ()) -> int:
    """The exit status: 0 after Ctrl-C or SIGTERM, 1 where a process ended by itself. Nothing is started again.

    `devices`: a worker for each; the first listens on `worker`, each other one on the next port.
    """
    starting = f"{len(devices)} workers" if len(devices) > 1 else "a worker"
    print(f"Starting {starting} with {model} and a frontend ...", flush=True)
    apis = {"apis": "grpc,tei,http", "http-listen": http} if http else {}
    own, others = {"listen": worker}, {"listen": frontend, **apis}
    with ExitStack() as stopping:
        async with stack(model, devices=devices, worker=own, frontend=others) as pair:
            further = {f"worker {number}": each for number, each in enumerate(pair.workers[1:], 2)}
            members = {"worker": pair.worker, "frontend": pair.frontends[0], **further}
            told = [f"{name} {member.address} (process {member.pid})" for name, member in members.items()]
            for each in told[2:]:
                print(f"Also {each}.", flush=True)
            told[2:] = [f"HTTP {pair.frontends[0].http_url}"] if http else []
            print(f"Ready: {', '.join(told)}. Ctrl-C stops.", flush=True)
            ended = await first_to_end(members, stopping.enter_context(told_by(signal.SIGTERM, signal.SIGINT)))
            print(f"{ended}\nStopping ..." if ended else "Stopping ...", flush=True)
    return 1 if ended else 0


async def first_to_end(members: Mapping[str, Member], told: asyncio.Event) -> str:
    """What to tell of the first that ends by itself; "" where we were `told` to stop before any did."""
    stopping = asyncio.create_task(told.wait())
    ends = {asyncio.create_task(member.ended()): name for name, member in members.items()}
    await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        found = ""
    else:
        status, name = next((each.result(), name) for each, name in ends.items() if each.done())
        found = "\n".join(
            [f"The {name} ended by itself with status {status}: {meaning(status)}.", *members[name].log[-LAST_LINES:]]
        )
    for task in (stopping, *ends):
        task.cancel()
    await asyncio.wait([stopping, *ends])
    return found


def meaning(status: int) -> str:
    """Of an exit status, negative for a signal."""
    if status in MEANINGS:
        return MEANINGS[status]
    if status < 0:
        return f"{signal.Signals(-status).name}, a signal"
    return "it failed; its last lines say how"
