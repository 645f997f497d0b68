"""Drives the worker's scheduler in the caller's thread, for tests and benchmarks; the worker has `Driver`."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from math import inf

from gpu_worker.schedule.scheduler import Action, Collect, Idle, Launch, Scheduler, Wait
from gpu_worker.schedule.steps import EndedJob


def until_idle(scheduler: Scheduler) -> Iterator[EndedJob]:
    """Carries out one action after the other until no job is left that may be computed."""
    while True:
        yield from scheduler.drop_expired()
        action = scheduler.next_action()
        if isinstance(action, Idle):
            return
        yield from perform(scheduler, action)


def advance(scheduler: Scheduler) -> list[EndedJob]:
    """Carries out the next action. Returns the jobs that ended."""
    return scheduler.drop_expired() + perform(scheduler, scheduler.next_action())


def perform(scheduler: Scheduler, action: Action) -> list[EndedJob]:
    """Carries out an action, and waits for it. Returns the jobs that ended, and prints bugs."""
    older = scheduler.older_step
    match action:
        case Launch():
            planned = scheduler.plan_step()
            if planned is not None:
                scheduler.launch_step(planned)
        case Collect():
            assert older is not None
            outcomes = scheduler.collect_step()
            for bug in older.bugs:
                print(f"{bug.event}, {bug.parts} job slices", bug.trace, sep="\n", file=sys.stderr)
            return list(scheduler.end_step(outcomes).jobs)
        case Wait(seconds=seconds):
            assert older is not None
            with suppress(TimeoutError):
                older.handle.arrived.exception(timeout=None if seconds == inf else seconds)
    return []
