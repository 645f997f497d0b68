"""The four things that the loop can do next. `Loop.next_action` chooses one; a driver carries it out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """Plan a step from what waits, and launch it."""


@dataclass(frozen=True, slots=True)
class Collect:
    """Collect the older step, which has arrived, and answer the jobs that end with it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the older step arrives, a job comes, or `seconds` have passed (infinite: no limit)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Wait until a job comes: no step is under way, and no job may be computed."""


Action = Launch | Collect | Wait | Idle
