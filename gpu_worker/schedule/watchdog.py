"""When a device counts as stalled or lost. No clock, no I/O."""

TIMES_PREDICTED, LEAST_SECONDS = 10.0, 5.0
"""A step stalls when it takes so many times what its tokens predict, and at least so many seconds."""
LOST_SECONDS = 60.0
"""Seconds that a stalled step is waited for before the device counts as lost."""
EXIT_STATUS = 69
"""Exit status of a worker whose device is lost (EX_UNAVAILABLE of sysexits.h), so that a supervisor restarts it."""


class DeviceLost(Exception):
    """The device computes nothing any more; only another process can use it again."""


class Pauses:
    """How long a process stood still while a step was running, as a watch sees it that sleeps between two looks."""

    def __init__(self) -> None:
        self._stood, self._pace = 0.0, 0.0

    def left_out_of(self, seconds: float, *, slept: float, planned: float, computed: float) -> float:
        """Seconds that a step has taken so far, without those in which the process stood still.

        Called at each look. `slept`: seconds since the look before; `planned`: as many as they should have been;
        `computed`: seconds of processor time that all threads took meanwhile.

        A machine that stands still or a process that is stopped takes no processor time. A look that comes late though
        the process computed may wait for the step itself, whose thread holds the interpreter's lock: that counts.
        """
        late, is_same_step = max(slept - planned, 0.0), seconds > slept
        if late < planned:
            self._pace = computed / slept if slept else 0.0  # seconds that it computes in a second, on all cores
        still = max(late - max(computed - self._pace * planned, 0.0), 0.0)
        self._stood = min(seconds, still + (self._stood if is_same_step else 0.0))
        return seconds - self._stood


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
