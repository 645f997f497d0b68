"""When a device counts as stalled or lost. No clock, no I/O."""

TIMES_PREDICTED, LEAST_SECONDS = 10.0, 5.0
"""A step stalls when it takes so many times what its tokens predict, and at least so many seconds."""
LOST_SECONDS = 60.0
"""Seconds that a stalled step is waited for before the device counts as lost."""
EXIT_STATUS = 69
"""Exit status of a worker whose device is lost (EX_UNAVAILABLE of sysexits.h), so that a supervisor restarts it."""


class DeviceLost(Exception):
    """The device computes nothing any more; only another process can use it again."""


def overdue(seconds: float, tokens: int, speed: float) -> float:
    """Seconds by which a step is late that has taken `seconds` so far; 0 or less while it is in time.

    `tokens`: the step's extent. A late piece of a long text takes far longer than a short text of as many tokens.
    `speed`: tokens a second, 0 while unknown.
    """
    predicted = tokens / speed if speed else 0.0
    return seconds - max(LEAST_SECONDS, TIMES_PREDICTED * predicted)


def stall_message(seconds: float, tokens: int) -> str:
    """Explains a stall to health checks and frontends."""
    return f"a step of {tokens} tokens has taken {seconds:.0f} s and has not ended"
