"""What the loop tells while it runs, and callbacks that ignore it. No torch, asyncio or gRPC."""

from collections.abc import Callable

from shared.jobs import JobResult

ObserveStep = Callable[[float, int, int], None]
"""A callback for every step that ended: its seconds, tokens and units."""
OnPart = Callable[[int, JobResult], None]
"""A callback for what leaves of a job, by its id, before the job ends."""


def undelivered(identity: int, part: JobResult) -> None:
    """Drops parts: for drivers without jobs in parts."""


def unobserved(seconds: float, tokens: int, units: int) -> None:
    """Ignores the steps that ended."""
