"""Runs a service whose way of a request is stamped: `SERVICE=gpu_worker STAMPS=FILE python -m benchmarks.load.stamped`.

The service's own flags follow. Its methods are wrapped before it runs, so the product has no line for this.
"""

import functools
import inspect
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.load.stamps import StampFile

POINTS = (
    "arrived",
    "read",
    "tokenised",
    "job left",
    "job came",
    "queued",
    "planned",
    "computing",
    "pooling",
    "computed",
    "collecting",
    "answer left",
    "answer came",
    "reply made",
)
"""Where a request comes by, in this order."""
BEFORE, AFTER = "before", "after"
WRAPPED = {
    "frontend_service": (
        ("shared.server.rpc.interceptor:_named", BEFORE, "arrived"),
        ("frontend_service.api.http.connection:Connection.data_received", BEFORE, "arrived"),
        ("frontend_service.services.pipeline:Pipeline.run_slices", BEFORE, "read"),
        ("frontend_service.services.pipeline:Pipeline.run_slices", AFTER, "tokenised"),
        ("frontend_service.workers.stream:JobStream._next_message", AFTER, "job left"),
        ("frontend_service.workers.stream:JobStream._parse_message", BEFORE, "answer came"),
        ("shared.server.rpc.interceptor:Interceptor._until_read", BEFORE, "reply made"),
        ("frontend_service.api.http.cycle:Cycle._write_body", BEFORE, "reply made"),
    ),
    "gpu_worker": (
        ("gpu_worker.link.attachment:Attachment.receive", BEFORE, "job came"),
        ("gpu_worker.schedule.driver:Driver.submit", AFTER, "queued"),
        ("gpu_worker.schedule.scheduler:Scheduler.plan_step", BEFORE, "planned"),
        ("gpu_worker.engine.engine:ModelEngine._compute", BEFORE, "computing"),
        ("gpu_worker.engine.step.outputs:Outputs.compute", BEFORE, "pooling"),
        ("gpu_worker.engine.engine:ModelEngine._compute", AFTER, "computed"),
        ("gpu_worker.schedule.scheduler:Scheduler.collect_step", BEFORE, "collecting"),
        ("gpu_worker.link.outbox:Outbox._message_of_outcomes", AFTER, "answer left"),
    ),
}
"""Functions of each service, whether they are stamped before or after, and the point that this is."""


def wrap(name: str, when: str, stamp: Callable[[], None]) -> None:
    """Stamps each call of a function, by MODULE:NAME. Raises AttributeError where there is none."""
    module, _, path = name.partition(":")
    owner, _, attribute = path.rpartition(".")
    holder = pkgutil.resolve_name(f"{module}:{owner}" if owner else module)
    function = getattr(holder, attribute)

    @functools.wraps(function)
    def stamped(*arguments: Any, **keywords: Any) -> Any:
        if when == BEFORE:
            stamp()
            return function(*arguments, **keywords)
        outcome = function(*arguments, **keywords)
        stamp()
        return outcome

    @functools.wraps(function)
    async def stamped_after(*arguments: Any, **keywords: Any) -> Any:
        outcome = await function(*arguments, **keywords)
        stamp()
        return outcome

    is_awaited = when == AFTER and inspect.iscoroutinefunction(inspect.unwrap(function))
    setattr(holder, attribute, stamped_after if is_awaited else stamped)


def main() -> None:
    service, stamps = os.environ["SERVICE"], StampFile(Path(os.environ["STAMPS"]))
    for name, when, point in WRAPPED[service]:
        wrap(name, when, functools.partial(stamps.add, POINTS.index(point)))
    sys.argv[0] = service
    runpy.run_module(service, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
