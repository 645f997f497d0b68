"""A worker or frontend process: starts, watches, drains, kills and restarts it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.environment import ROOT, python_path
from shared.server.options import channel_options

SERVING = health_pb2.HealthCheckResponse.SERVING


class MemberFailed(RuntimeError):
    """A process that ended, or did not become ready in time; the message holds the end of its log."""


OpenChannel = Callable[[str], grpc.aio.Channel]
"""Opens a channel to an address."""


def plain_channel(address: str) -> grpc.aio.Channel:
    """Opens a channel without TLS."""
    return grpc.aio.insecure_channel(address, options=channel_options())


class ServiceProcess:
    """A worker or a frontend. `address` is known once it listens; `log` holds its lines, the newest last."""

    execute: Callable[..., Awaitable[asyncio.subprocess.Process]] = staticmethod(asyncio.create_subprocess_exec)
    """Starts a process; tests replace it with a faster function."""

    def __init__(
        self,
        module: str,
        services: Sequence[str],
        arguments: Mapping[str, object],
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        channel: OpenChannel = plain_channel,
        checkout: Path = ROOT,
    ) -> None:
        """`channel`: opens the channel for health checks. `checkout`: whose code it runs."""
        self._checkout = checkout
        self._channel = channel
        self.module = module
        self.services = services
        self.arguments = dict(arguments)
        self.address = ""
        self.log: list[str] = []
        self._python = python
        self._environment = dict(os.environ) | {"PYTHONUNBUFFERED": "1"} | dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def events(self) -> list[dict[str, Any]]:
        """The log's lines that are JSON objects."""
        return [json.loads(line) for line in self.log if line.startswith("{")]

    @property
    def http_address(self) -> str:
        """The address of a frontend's HTTP API, once it is ready."""
        addresses: list[str] = [event["address"] for event in self.events if event["event"] == "listening over HTTP"]
        return addresses[-1]

    @property
    def http_url(self) -> str:
        """The URL of a frontend's HTTP API."""
        return f"http://{self.http_address}"

    async def start(self) -> None:
        """Starts the process and waits until it listens; a restart takes the same address again."""
        listen = {"listen": self.address or self.arguments.get("listen", "127.0.0.1:0")}
        flags = [flag for key, value in (self.arguments | listen).items() for flag in _flags(key, value)]
        self._listening.clear()
        self._process = await self.execute(
            *(self._python, "-m", self.module, *flags),
            cwd=self._checkout,
            env=self._environment | {"PYTHONPATH": python_path(self._checkout)},
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
            start_new_session=True,  # Ctrl-C is for us; members are stopped in order
        )
        self._reader = asyncio.create_task(self._read(self._process))
        await self._first_of(self._listening.wait(), timeout=240, what="listen")

    async def wait_ready(self, timeout: float = 240) -> None:
        """Returns when health reports every service as SERVING."""

        async def watch() -> None:
            async with self._channel(self.address) as channel:
                health: Any = health_pb2_grpc.HealthStub(channel)
                for service in self.services:
                    request = health_pb2.HealthCheckRequest(service=service)
                    while not await self._serves(health, request):  # noqa: ASYNC110 - another process's state
                        await asyncio.sleep(0.05)

        await self._first_of(watch(), timeout=timeout, what="become ready")

    async def ended(self) -> int:
        """The exit status, negative for a signal, as soon as the process has ended; its log is whole then."""
        assert self._process is not None
        assert self._reader is not None
        status = await self._process.wait()
        await asyncio.shield(self._reader)
        return status

    async def stop(self, timeout: float = 60) -> int:
        """Sends SIGTERM and waits for the drain; returns the exit status."""
        return await self._end(signal.SIGTERM, timeout)

    async def kill(self) -> None:
        """Kills the process without a drain."""
        await self._end(signal.SIGKILL, 10)

    async def restart(self) -> None:
        """Starts the process again on the same address; it may still load when this returns."""
        await self.start()

    @staticmethod
    async def _serves(health: Any, request: health_pb2.HealthCheckRequest) -> bool:
        try:
            async for response in health.Watch(request, wait_for_ready=True):
                if response.status == SERVING:
                    return True
        except grpc.aio.AioRpcError:
            pass
        return False

    async def _end(self, number: signal.Signals, timeout: float) -> int:
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return 0
        if process.returncode is None:
            os.kill(process.pid, number)  # not send_signal: that polls, and may steal the status from asyncio
        try:
            status = await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            os.kill(process.pid, signal.SIGKILL)
            status = await process.wait()
        except asyncio.CancelledError:  # the process must not outlive a cancelled wait
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            raise
        await reader
        return status

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for raw in process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self.log.append(line)
            if not self._listening.is_set() and '"listening"' in line:
                self.address = json.loads(line)["address"]
                self._listening.set()

    async def _first_of(self, wanted: Any, *, timeout: float, what: str) -> None:
        """Waits for `wanted`, for the process to end, or for the time to pass, whichever comes first."""
        assert self._process is not None
        tasks = [asyncio.ensure_future(wanted), asyncio.ensure_future(self._process.wait())]
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                await tasks[0]
                return
            ended = f"ended with status {self._process.returncode}" if tasks[1].done() else "took too long"
            if tasks[1].done() and self._reader is not None:
                await self._reader
            tail = "\n".join(self.log[-20:])
            raise MemberFailed(f"{self.module} did not {what}: it {ended}\n{tail}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _flags(key: str, value: object) -> list[str]:
    """Builds the arguments for a setting: a switch has no value, a list repeats its flag."""
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no-{key}"]
    return [f"--{key}={entry}" for entry in (value if isinstance(value, list) else [value])]
