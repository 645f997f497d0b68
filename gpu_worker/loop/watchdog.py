"""When a device counts as stalled or lost. Pure; no clock, no asyncio."""

TIMES_PREDICTED, LEAST_SECONDS = 10.0, 5.0
"""A step stalls when it takes so many times what its tokens predict, and so long at least."""
LOST_SECONDS = 60.0
"""A step that takes so much longer than it should is not waited for."""
EXIT_STATUS = 69
"""Of a worker whose device is lost: EX_UNAVAILABLE of sysexits.h. Whatever supervises it starts it again."""


class DeviceLost(Exception):
    """The device computes nothing any more; only another process can use it again."""


def overdue(seconds: float, tokens: int, speed: float) -> float:
    """By how many seconds a step is late that has taken so long; 0 or less while it is not."""
    predicted = tokens / speed if speed else 0.0
    return seconds - max(LEAST_SECONDS, TIMES_PREDICTED * predicted)


def stalled(seconds: float, tokens: int) -> str:
    """What health and frontends are told."""
    return f"a step of {tokens} tokens has taken {seconds:.0f} s and has not ended"
