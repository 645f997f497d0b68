"""The steps that were launched and are not collected yet. No clock, no I/O."""

from collections.abc import Sequence

from gpu_worker.loop.interface import OpenJob
from gpu_worker.loop.steps import LaunchedStep

MOST_UNDER_WAY = 2
"""Most steps under way: while one is computed, another one is packed or collected."""


class StepsUnderWay:
    """At most two steps, which the device computes in the order of their launch: the older and the later one."""

    def __init__(self) -> None:
        self._steps: list[LaunchedStep] = []
        self._ended = 0.0

    @property
    def older(self) -> LaunchedStep | None:
        """The step that is collected next, or None."""
        return self._steps[0] if self._steps else None

    @property
    def may_launch(self) -> bool:
        """Whether another step may be launched: none may behind a suspect step, which will be run again."""
        return len(self._steps) < MOST_UNDER_WAY and not any(step.suspect for step in self._steps)

    def append(self, step: LaunchedStep) -> None:
        """Adds a step that was launched."""
        assert len(self._steps) < MOST_UNDER_WAY
        self._steps.append(step)

    def end_older(self, now: float) -> tuple[LaunchedStep, float]:
        """Removes the older step, which ended `now`. Returns it, and when the device began it."""
        step = self._steps.pop(0)
        begin, self._ended = self._begin(step), now
        return step, begin

    def mark_later_suspect(self, failed: Sequence[OpenJob]) -> None:
        """Marks later steps as suspect that go on with a job of the older step, which failed."""
        for later in self._steps[1:]:
            later.suspect = any(job_slice.job in failed for job_slice in later.planned.slices)

    def running(self, now: float) -> tuple[float, int] | None:
        """Seconds that the older step has been computed for, and its extent in tokens; None where there is no step."""
        if not self._steps:
            return None
        older = self._steps[0]
        return now - max(self._begin(older), older.retried), older.planned.extent

    def seconds_left(self, now: float, speed: float) -> float:
        """Seconds until all steps should end, at `speed` tokens a second; 0 while the speed is unknown."""
        if not self._steps or not speed:
            return 0.0
        return max(0.0, sum(step.tokens for step in self._steps) / speed - (now - self._begin(self._steps[0])))

    def _begin(self, step: LaunchedStep) -> float:
        """When the device began the older step: at its launch, or when the step before it ended."""
        return max(step.start, self._ended)
