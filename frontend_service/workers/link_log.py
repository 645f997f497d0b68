"""What the log says of one worker: a line for each change, and none for what repeats itself. Knows no transport."""

import time
from collections.abc import Callable

import structlog

from frontend_service.workers.reply_check import WrongReply
from shared.card import ModelCard

SETTLED_SECONDS = 5.0
"""Seconds after which a link counts as one that works, though no job was answered over it."""

log = structlog.get_logger("worker")


class LinkLog:
    """The lines of one worker; `target` in them is its address.

    A worker that attaches again and again without doing anything is told once. `settled`: whether the link works, or
    the last one did: it has answered a job, or lasted for a while without a wrong message.
    """

    def __init__(self, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._target, self._clock = target, clock
        self.settled = True
        self._ready: dict[str, str] = {}  # the line that says that the worker is ready
        self._why = ""  # why it was not ready, since that line
        self._instance, self._wrongs = "", set[str]()  # the worker process, and why its replies did not fit
        self._attached = clock()

    def attached(self, card: ModelCard, instance: str) -> None:
        """The worker serves this model. `instance` tells a process that was started again from the one before."""
        if instance != self._instance:
            self._instance = instance
            self._wrongs.clear()
        self._ready = {"model": card.id, "fingerprint": card.fingerprint}
        self._attached = self._clock()
        if self.settled:
            self._log_ready()
        self.settled = False

    def answered(self) -> None:
        """A job was answered, and the reply fits."""
        self.settled = True
        if self._ready:
            self._log_ready()

    def ended(self, why: str, *, sound: bool) -> None:
        """The link ended, or could not be made. `sound`: it was made, and no wrong message ended it."""
        if sound and self._clock() - self._attached > SETTLED_SECONDS:
            self.settled = True
        if why != self._why:
            log.warning("worker not ready", target=self._target, why=why)
            self._why = why
        self._ready = {}

    def wrong_reply(self, wrong: WrongReply) -> None:
        """The reply to a job does not fit."""
        if wrong.reason not in self._wrongs:
            self._wrongs.add(wrong.reason)
            log.error("a worker's reply does not fit", target=self._target, why=str(wrong))

    def set_aside(self, seconds: float, why: str) -> None:
        """The worker gets no jobs for so long, since another answered one that it failed."""
        log.warning("worker set aside", target=self._target, seconds=round(seconds, 1), why=why)

    def bug(self, error: Exception, why: str) -> None:
        """The link ended by a bug of ours, which `ended` will be told as `why`."""
        if why != self._why:
            log.error("bug", target=self._target, exc_info=error)

    def _log_ready(self) -> None:
        log.info("worker ready", target=self._target, **self._ready)
        self._ready, self._why = {}, ""
