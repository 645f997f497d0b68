"""Frontends beside workers, timed ones or a real one, as processes, for a benchmark that is not asynchronous itself."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.scale.timed_engine import StepTime
from benchmarks.services import Server
from benchmarks.workloads import MAX_TOKENS, MINILM
from harness.stack import Stack, stack

T = TypeVar("T")
SCHEMES = {"gRPC": "", "tei.v1": "tei:", "HTTP": "http://"}
"""APIs, and the beginnings of their addresses as the load generator takes them."""
TIMED_WORKER = "benchmarks.scale.timed_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """Processes that run, and the event loop that reads their logs while `beside` waits for other work."""

    processes: Stack
    runner: asyncio.Runner

    def server(self, api: str, frontends: int) -> Server:
        """The first so many frontends by one API, and all processes whose CPU is measured."""
        chosen = self.processes.frontends[:frontends]
        addresses = [front.http_address if api == "HTTP" else front.address for front in chosen]
        if api == "HTTP":
            addresses = [f"http://{address}" for address in addresses]
        pids = {f"frontend {number}": front.pid for number, front in enumerate(chosen, 1)}
        pids |= {f"worker {number}": worker.pid for number, worker in enumerate(self.processes.workers, 1)}
        return Server(address=f"{SCHEMES[api] if api == 'tei.v1' else ''}{','.join(addresses)}", pids=pids)

    def beside(self, work: Callable[[], T]) -> T:
        """Does work that blocks in a thread."""

        async def run() -> T:
            return await asyncio.to_thread(work)

        return self.runner.run(run())


def timed_stack(
    *, workers: int, frontends: int, time: StepTime, step_tokens: int
) -> AbstractContextManager[RunningStack]:
    """Starts timed workers and frontends with all three APIs; drains them at the end. Raises MemberFailed."""
    flags = {"tokens-per-second": time.speed, "overhead": time.overhead, "step-tokens": step_tokens}
    apis = {"apis": "grpc,tei,http"}
    return _run(
        stack("", workers=workers, frontends=frontends, worker=flags, frontend=apis, worker_module=TIMED_WORKER)
    )


def minilm_stack(step_tokens: int) -> AbstractContextManager[RunningStack]:
    """Starts a worker with MiniLM that computes in one thread, and a frontend; drains them at the end."""
    return _run(stack(MINILM, worker={"threads": 1, "max-tokens": MAX_TOKENS, "step-tokens": step_tokens}))


@contextmanager
def _run(processes: AbstractAsyncContextManager[Stack]) -> Iterator[RunningStack]:
    with asyncio.Runner() as runner:
        cleanup = AsyncExitStack()
        entering = cleanup.enter_async_context(processes)

        async def enter() -> Stack:
            return await entering

        try:
            yield RunningStack(processes=runner.run(enter()), runner=runner)
        finally:
            runner.run(cleanup.aclose())
