"""A driver as attachments see it, whose jobs a test answers; and an attachment to it."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_worker.link.attachment import Attachment, FrontendLog
from gpu_worker.link.outbox import Outboxes
from shared.errors import SelvageError
from shared.jobs import Job, JobResult
from shared.link_codec import UnsentOutcome
from shared.load import Load

FRAME = UnsentOutcome(0, JobResult(scores=b"a number")).frame
"""Bytes that a result counts for beside its scores."""
Tell = Callable[[JobResult | SelvageError], None]
MODEL = "a fingerprint"


class HeldJobs:
    """Holds jobs until a test answers them; computes nothing for those that are set aside."""

    def __init__(self) -> None:
        self.load = Load()
        self.held: dict[int, Tell] = {}
        self.aside: set[int] = set()

    @property
    def idle(self) -> bool:
        return not self.held

    def submit(self, job: Job, on_outcome: Tell, *, wake: bool = True) -> None:
        self.held[job.id] = on_outcome

    def wake(self) -> None:
        """Nothing is computed here."""

    def cancel(self, ids: Iterable[int]) -> None:
        for identity in ids:
            self.held.pop(identity, None)
            self.aside.discard(identity)

    def set_aside(self, ids: Iterable[int]) -> None:
        self.aside |= set(ids)

    def bring_back(self, ids: Iterable[int]) -> None:
        self.aside -= set(ids)

    def answer(self, identity: int, size: int) -> None:
        """The result counts for so many bytes."""
        assert identity not in self.aside
        self.held.pop(identity)(JobResult(scores=bytes(size - FRAME)))


def attached(driver: Any, outboxes: Outboxes | None = None) -> Attachment:
    """A frontend to a driver, whose jobs are not checked."""
    frontends = outboxes or Outboxes(1 << 30)
    threads, log = ThreadPoolExecutor(1), FrontendLog()
    return Attachment(driver, MODEL, threads, frontends, log, "a frontend", lambda job: None)
