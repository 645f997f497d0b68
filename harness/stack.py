"""`async with stack(model, workers=M, frontends=N)`: workers and frontends on free ports, ready, drained at the end."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from harness.member import Member, OpenChannel, plain_channel
from shared.server.rpc import channel_options
from shared.server.services import PUBLIC_SERVICES, TEI_SERVICES, WORKER_SERVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running pair, or more workers with one model. `channels` are one a frontend, open as long as the stack is."""

    workers: Sequence[Member]
    frontends: Sequence[Member]
    channels: Sequence[grpc.aio.Channel]

    @property
    def worker(self) -> Member:
        """The first one."""
        return self.workers[0]

    @property
    def channel(self) -> grpc.aio.Channel:
        """The first frontend's."""
        return self.channels[0]

    @property
    def members(self) -> Sequence[Member]:
        """All processes."""
        return (*self.workers, *self.frontends)

    def balanced_channel(self, *, retries: bool = False) -> grpc.aio.Channel:
        """One channel over all frontends in turn; the caller closes it. `retries`: asks again by `RETRIES`."""
        target = "ipv4:" + ",".join(frontend.address for frontend in self.frontends)
        config = json.dumps(ROUND_ROBIN | (RETRIES if retries else {}))
        options: list[tuple[str, int | str]] = [*channel_options(), ("grpc.service_config", config)]
        return grpc.aio.insecure_channel(target, options=options)


ROUND_ROBIN: dict[str, Any] = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": ""},
}
RETRIES: dict[str, Any] = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,  # more gRPC does not allow
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
"""A service config for clients. Where an answer says when to ask again (pushback), gRPC waits for that long instead."""


@asynccontextmanager
async def stack(
    model: str = "minilm",
    *,
    workers: int = 1,
    frontends: int = 1,
    devices: Sequence[str] = (),
    worker: Mapping[str, object] | None = None,
    frontend: Mapping[str, object] | None = None,
    python: str | None = None,
    channel: OpenChannel = plain_channel,
) -> AsyncIterator[Stack]:
    """Starts the pair, waits for health, drains it at the end.

    `devices`: a worker for each of them, however many `workers` say. `worker` and `frontend` are further flags by name
    (`{"max-tokens": 512}`); `python` another interpreter for the frontends; `channel` opens one to an address of any.
    Raises MemberFailed where a process does not become ready.
    """
    async with AsyncExitStack() as cleanup:
        flags = worker_flags({"model": model, **(worker or {})}, workers, devices)
        holders = [Member("gpu_worker", WORKER_SERVICES, each, channel=channel) for each in flags]
        await asyncio.gather(*(_start(member, cleanup) for member in holders))
        apis = str((frontend or {}).get("apis", "grpc"))
        fronts = [
            Member(
                "frontend_service",
                PUBLIC_SERVICES if "grpc" in apis else TEI_SERVICES,
                {
                    "worker": [each.address for each in holders],
                    "drain-delay": 0.5 if frontends > 1 else 0,
                    **({"http-listen": "127.0.0.1:0"} if "http" in apis else {}),
                    **(frontend or {}),
                },
                python=python or sys.executable,
                channel=channel,
            )
            for _ in range(frontends)
        ]
        await asyncio.gather(*(_start(member, cleanup) for member in fronts))
        await asyncio.gather(*(member.wait_ready() for member in (*holders, *fronts)))
        channels = [await cleanup.enter_async_context(channel(member.address)) for member in fronts]
        yield Stack(workers=holders, frontends=fronts, channels=channels)


def worker_flags(shared: Mapping[str, object], workers: int, devices: Sequence[str] = ()) -> list[dict[str, object]]:
    """Flags of each worker: those that all share, its device, and a port further than the one before it."""
    found: list[dict[str, object]] = [{**shared, "device": each} for each in devices]
    found = found or [dict(shared) for _ in range(workers)]
    for number, flags in enumerate(found):
        host, _, port = str(flags.get("listen", "")).rpartition(":")
        if port and int(port):  # 0 is any free one
            flags["listen"] = f"{host}:{int(port) + number}"
    return found


async def _start(member: Member, cleanup: AsyncExitStack) -> None:
    cleanup.push_async_callback(member.stop)
    await member.start()
