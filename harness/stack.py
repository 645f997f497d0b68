"""`async with stack(model, workers=M, frontends=N)`: workers and frontends on free ports, ready, drained at the end."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from harness.environment import ROOT
from harness.member import OpenChannel, ServiceProcess, plain_channel
from shared.server.options import PUBLIC_SERVICES, WORKER_SERVICES, channel_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running pair, or more workers with one model. `channels` are one a frontend, open as long as the stack is."""

    workers: Sequence[ServiceProcess]
    frontends: Sequence[ServiceProcess]
    channels: Sequence[grpc.aio.Channel]

    @property
    def worker(self) -> ServiceProcess:
        """The first worker."""
        return self.workers[0]

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel of the first frontend."""
        return self.channels[0]

    @property
    def members(self) -> Sequence[ServiceProcess]:
        """All processes, workers first."""
        return (*self.workers, *self.frontends)

    def balanced_channel(self, *, retries: bool = False) -> grpc.aio.Channel:
        """One channel over all frontends in turn; the caller closes it. `retries`: retries calls as `RETRIES` says."""
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
"""A service config for clients. If a reply has a pushback, gRPC waits for that time instead."""


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
    worker_module: str = "gpu_worker",
    checkout: Path = ROOT,
) -> AsyncIterator[Stack]:
    """Starts the pair, waits for health, drains it at the end.

    `devices`: starts one worker for each, and `workers` is ignored. `worker` and `frontend`: further flags by name
    (`{"max-tokens": 512}`). `python`: the interpreter of the frontends. `channel`: opens channels to all processes.
    `worker_module`: the program of the workers, which gets no `--model` where `model` is empty. `checkout`: whose code
    all of them run.
    Raises MemberFailed if a process does not become ready.
    """
    async with AsyncExitStack() as cleanup:
        flags = worker_flags({**({"model": model} if model else {}), **(worker or {})}, workers, devices)
        options: dict[str, Any] = {"channel": channel, "checkout": checkout}
        holders = [ServiceProcess(worker_module, WORKER_SERVICES, settings, **options) for settings in flags]
        await asyncio.gather(*(_start(member, cleanup) for member in holders))
        fronts = [
            ServiceProcess(
                "frontend_service",
                PUBLIC_SERVICES,
                {
                    "worker": [process.address for process in holders],
                    "drain-delay": 0.5 if frontends > 1 else 0,
                    **(frontend or {}),
                },
                python=python or sys.executable,
                **options,
            )
            for _ in range(frontends)
        ]
        await asyncio.gather(*(_start(member, cleanup) for member in fronts))
        await asyncio.gather(*(member.wait_ready() for member in (*holders, *fronts)))
        channels = [await cleanup.enter_async_context(channel(member.address)) for member in fronts]
        yield Stack(workers=holders, frontends=fronts, channels=channels)


def worker_flags(shared: Mapping[str, object], workers: int, devices: Sequence[str] = ()) -> list[dict[str, object]]:
    """Flags of each worker: those that all share, its device, and a port further than the one before it."""
    settings: list[dict[str, object]] = [{**shared, "device": device} for device in devices]
    settings = settings or [dict(shared) for _ in range(workers)]
    for number, flags in enumerate(settings):
        host, _, port = str(flags.get("listen", "")).rpartition(":")
        if port and int(port):  # 0 is any free one
            flags["listen"] = f"{host}:{int(port) + number}"
    return settings


async def _start(member: ServiceProcess, cleanup: AsyncExitStack) -> None:
    cleanup.push_async_callback(member.stop)
    await member.start()
