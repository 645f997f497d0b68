"""The four actions of a driver. `Loop.next_action` decides which one is next, and the driver carries it out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """The driver plans a step from what waits, and launches it."""


@dataclass(frozen=True, slots=True)
class Collect:
    """The driver collects the older step, which has arrived, and answers the jobs that end with it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The driver waits until the older step arrives, a job comes, or `seconds` have passed (`inf`: no limit)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Idle:
    """The driver waits until a job comes or one is late: no step is under way, and no job may be computed."""


Action = Launch | Collect | Wait | Idle
