"""`async with stack(model, frontends=N)`: one worker and N frontends on free ports, ready, drained at the end."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc

from harness.member import Member
from shared.rpc import channel_options
from shared.services import PUBLIC_SERVICES, WORKER_SERVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running pair. `channels` are one a frontend, open as long as the stack is."""

    worker: Member
    frontends: Sequence[Member]
    channels: Sequence[grpc.aio.Channel]

    @property
    def channel(self) -> grpc.aio.Channel:
        """The first frontend's."""
        return self.channels[0]

    @property
    def members(self) -> Sequence[Member]:
        """All processes."""
        return (self.worker, *self.frontends)

    @property
    def logs(self) -> dict[str, list[str]]:
        """All lines, by process."""
        names = ("worker", *(f"frontend {number}" for number in range(len(self.frontends))))
        return {name: member.log for name, member in zip(names, self.members, strict=True)}

    def balanced_channel(self) -> grpc.aio.Channel:
        """One channel over all frontends in turn; the caller closes it."""
        target = "ipv4:" + ",".join(frontend.address for frontend in self.frontends)
        options: list[tuple[str, int | str]] = [*channel_options(), ("grpc.service_config", ROUND_ROBIN)]
        return grpc.aio.insecure_channel(target, options=options)


ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}'


@asynccontextmanager
async def stack(
    model: str = "minilm",
    *,
    frontends: int = 1,
    worker: Mapping[str, object] | None = None,
    frontend: Mapping[str, object] | None = None,
    python: str | None = None,
) -> AsyncIterator[Stack]:
    """Starts the pair, waits for health, drains it at the end.

    `worker` and `frontend` are further flags by name (`{"max-tokens": 512}`); `python` another interpreter for the
    frontends. Raises MemberFailed where a process does not become ready.
    """
    async with AsyncExitStack() as cleanup:
        holder = Member("gpu_worker", WORKER_SERVICES, {"model": model, **(worker or {})})
        await _start(holder, cleanup)
        fronts = [
            Member(
                "frontend_service",
                PUBLIC_SERVICES,
                {"worker": holder.address, "drain-delay": 0.5 if frontends > 1 else 0, **(frontend or {})},
                python=python or sys.executable,
            )
            for _ in range(frontends)
        ]
        await asyncio.gather(*(_start(member, cleanup) for member in fronts))
        await asyncio.gather(*(member.wait_ready() for member in (holder, *fronts)))
        channels = [
            await cleanup.enter_async_context(grpc.aio.insecure_channel(member.address, options=channel_options()))
            for member in fronts
        ]
        yield Stack(worker=holder, frontends=fronts, channels=channels)


async def _start(member: Member, cleanup: AsyncExitStack) -> None:
    cleanup.push_async_callback(member.stop)
    await member.start()
