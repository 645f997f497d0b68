"""The link to one worker: attached, lost, attached again; when it is set aside, and what the log says of it.

Knows the worker's model, and nothing of other workers. The logs call the worker's address `target`.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import grpc
import structlog

from frontend_service.domain.limits import ExpectedReply
from frontend_service.services.pipeline import ServedModel
from frontend_service.workers.job_stream import SILENCE, JobStream, WrongReply, parse_response
from frontend_service.workers.transport import (
    Metadata,
    WorkerTransport,
    allowed_cards,
    describe,
    failure_of,
    fetch_texts,
)
from selvage.worker.v1 import worker_pb2 as pb
from shared import tasks
from shared.card import ModelCard
from shared.errors import GivenBack, Internal, SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult, Priority
from shared.load import Estimate
from shared.server.options import LINK_VERSION, WORKER_SERVICES

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two attempts to attach: at first, and at most."""
LONGEST_WRONG_PAUSE = 10.0
"""Most seconds between two attempts to attach to a worker that sends what does not fit."""
SETTLED_SECONDS = 5.0
"""Seconds after which a link counts as one that works, though no job was answered over it."""
FAILURES = 5
"""Jobs that a worker must have failed in a row to be suspected, as in Envoy."""
FIRST_ASIDE, LONGEST_ASIDE = 1.0, 60.0
"""Seconds for which a worker is set aside: at first, and at most."""

log = structlog.get_logger("worker")


@dataclass(slots=True)
class OutlierDetection:
    """What the latest outcomes say of one worker. Times are seconds of any clock that never goes back.

    After Envoy's, by consecutive errors (envoyproxy.io, "Outlier detection"), with one difference: what another worker
    answers proves that the fault was the worker's, so no share of the workers is kept in by number.
    """

    _failures: int = 0  # in a row
    _pause: float = 0.0  # the latest
    _until: float = -inf  # its end

    @property
    def suspected(self) -> bool:
        """Whether it failed several jobs in a row; until it answers one, also after a pause."""
        return self._failures >= FAILURES

    def failed(self) -> None:
        """It failed a job, or refused it."""
        self._failures += 1

    def answered(self) -> None:
        """It answered a job."""
        self._failures = 0

    def is_aside(self, now: float) -> bool:
        """Whether it is to get no jobs that another can take."""
        return now < self._until

    def set_aside(self, now: float) -> float:
        """Sets it aside; returns for how many seconds, 0 where it is aside already.

        That is twice the pause before, less the time that it has served since.
        """
        if self.is_aside(now):
            return 0.0
        self._pause = min(LONGEST_ASIDE, max(FIRST_ASIDE, 2 * self._pause - (now - self._until)))
        self._until = now + self._pause
        return self._pause


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


class WorkerLink:
    """Keeps a worker attached, and sends it jobs.

    `models`: the worker's model and the adapters over it when it was last attached; none before. `why`: the reason why
    it does not serve. `outliers`: told the outcomes of its jobs by whoever can ask another worker.
    """

    def __init__(
        self,
        address: str,
        host: str,
        transport: WorkerTransport,
        message_threads: Executor,
        on_change: Callable[[], None],
        pins: Collection[str] = (),
    ) -> None:
        """`address`: HOST:PORT, found by the name `host`. `message_threads`: where large messages are made and read.
        `pins`: the fingerprints of the models that may be served; none: any.

        `on_change` is called whenever `serving`, `models` or `why` may have changed: after each attempt to attach, and
        when the worker begins or ends to drain or to stall.
        """
        self.address, self._host, self._transport = address, host, transport
        self._message_threads, self._on_change, self._pins = message_threads, on_change, pins
        self.models: tuple[ServedModel, ...] = ()
        self._last: ServedModel | None = None  # the worker's own model, whether it may be served or not
        self._stream: JobStream | None = None
        self._log = LinkLog(address)
        self.outliers = OutlierDetection()
        self.why = "no worker has answered yet"

    @property
    def serving(self) -> tuple[ServedModel, ...]:
        """The worker's models while it takes jobs, else none."""
        stream = self._stream
        return self.models if stream is not None and not (stream.load.draining or stream.load.stalled) else ()

    @property
    def attached(self) -> bool:
        """Whether a stream is open. The worker may drain or stall, and still have jobs to answer."""
        return self._stream is not None and not self._stream.ended

    @property
    def aside(self) -> bool:
        """Whether it is to get no jobs that another worker can take."""
        return self.outliers.is_aside(time.monotonic())

    def set_aside(self, why: str) -> None:
        """Sets it aside for a while: another worker answered a job that it failed, by the error `why`."""
        if seconds := self.outliers.set_aside(time.monotonic()):
            self._log.set_aside(seconds, why)

    def estimate(self, tokens: int, priority: Priority, key: str) -> Estimate:
        """What a new job of so many tokens has to expect; nothing where that is unknown.

        It follows from the load that the worker reported last, the jobs sent since, and the jobs of the same key that
        this frontend has there.
        """
        stream = self._stream
        if stream is None or not stream.load.tokens_per_second:
            return Estimate()
        # An upper bound: where a worker serves more than this before a job, callers that could be answered in time are
        # still let in, and late. test_no_more_is_served_ahead_than_told (tests/unit/test_load.py) holds `Load` to it.
        # What this frontend sent of the same key may wait, or be in the running step already: the worse case counts.
        unreported, of_key = stream.unreported_before(tokens), stream.key_tokens[key]
        estimate = stream.load.estimate(tokens, priority, 0, unreported)
        if not of_key:
            return estimate
        return max(
            estimate, stream.load.estimate(tokens, priority, of_key, unreported), key=lambda estimate: estimate.wait
        )

    @property
    def unheard_seconds(self) -> float:
        """Seconds for which others may have sent work since the worker told its load; see `Load.unheard`."""
        return 0.0 if self._stream is None else self._stream.unheard_seconds

    @property
    def others(self) -> float:
        """Seconds of work that other frontends lately sent the worker in a second; 0 where unknown."""
        return 0.0 if self._stream is None else self._stream.load.others

    @property
    def queue_seconds(self) -> float:
        """Seconds for which the worker lets jobs wait."""
        return self.models[0].queue_seconds if self.models else inf

    def drains_within(self, seconds: float) -> bool:
        """Whether the worker takes jobs, and serves in so many seconds all that waited when it told its load."""
        stream = self._stream
        if stream is None or stream.load.drained_in > min(seconds, self.queue_seconds):
            return False
        return bool(self.serving) and not self.aside

    async def run(self, job: Job, expected: ExpectedReply) -> JobResult:
        """Has the worker compute a job, whose reply must be as `expected`. Cancelling it cancels the job.

        Raises the job's own error, WorkerUnavailable, and GivenBack where another worker may take it; and Internal,
        which names the worker, where it failed or its reply does not fit the job.
        """
        if self._stream is None:
            raise GivenBack(f"the worker is not ready: {self.why}", retry_after=1.0)
        try:
            result = await self._stream.run(job, expected)
        except WrongReply as wrong:
            self._log.wrong_reply(wrong)
            raise Internal(f"the reply of the worker at {self.address} does not fit: {wrong}") from None
        except Internal as error:
            raise Internal(f"the worker at {self.address} failed: {error.message}", field=error.field) from None
        self._log.answered()
        return result

    async def stay_attached(self) -> None:
        """Attaches again after every failure, at growing intervals. Never returns."""
        pause = FIRST_PAUSE
        while True:
            longest = LONGEST_PAUSE
            try:
                await self._attach()
            except grpc.aio.AioRpcError as error:
                why = failure_of(error, self.address, self._host, self._transport)
            except SelvageError as error:
                why = error.message
            except WrongReply as wrong:
                why, longest = f"the worker at {self.address} sends what does not fit: {wrong}", LONGEST_WRONG_PAUSE
            except OSError as error:  # a certificate cannot be read
                why = str(error)
            except Exception as error:  # a bug: go on trying
                why = f"the link to the worker at {self.address} failed; the log of the frontend has it"
                self._log.bug(error, why)
            sound = self._stream is not None and longest == LONGEST_PAUSE
            self._log.ended(why, sound=sound)
            if sound and self._log.settled:
                pause = FIRST_PAUSE
            self._stream, self.why = None, why
            self._on_change()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, longest)

    async def _attach(self) -> None:
        """Attaches, and serves until the worker is lost; always raises.

        Each attempt makes a new channel, so that nothing of a dead one is used again.
        """
        channel, metadata = self._transport.channel(self.address, self._host), self._transport.metadata
        try:
            cards, description = await describe(channel, metadata)
            last, card = self._last, cards[0]
            cards = allowed_cards(cards, self._pins)
            if last is not None and last.card.fingerprint == card.fingerprint:
                texts = last.texts
            else:
                texts = await fetch_texts(channel, metadata, card, self._message_threads)
            call, instance = await _open_call(channel, metadata, card.fingerprint)
            stream = JobStream(call, card.fingerprint, self._message_threads, self._on_change)
            self._last = ServedModel(
                card=card,
                texts=texts,
                queued_tokens=description.queued_tokens,
                queue_seconds=description.queue_seconds or inf,
            )
            self.models = tuple(_with_card(self._last, allowed) for allowed in cards)
            self._stream = stream
            self._log.attached(card, instance)
            self._on_change()
            await stream.serve()
        finally:
            await channel.close()


def _with_card(base: ServedModel, card: ModelCard) -> ServedModel:
    """The worker's own model, or that of an adapter over it, by its card."""
    if card == base.card:
        return base
    return replace(base, card=card, texts=base.texts.with_card(card), adapter=True)


async def _open_call(channel: grpc.aio.Channel, metadata: Metadata, fingerprint: str) -> tuple[Any, str]:
    """Opens a call to Attach; returns it, and the worker's instance.

    Raises WorkerUnavailable if the worker has another version or does not answer, and WrongReply.
    """
    # It writes bytes, since large jobs are serialised in a thread, and reads bytes, since rows are views of them.
    attach: Any = channel.stream_stream(f"/{WORKER_SERVICES[0]}/Attach")
    call = attach(metadata=metadata)
    name = f"{socket.gethostname()}:{os.getpid()}"
    hello = pb.Hello(version=LINK_VERSION, name=name, fingerprint=fingerprint)
    try:
        async with tasks.limit(SILENCE):
            await call.write(pb.AttachRequest(hello=hello).SerializeToString())
            first = await call.read()
    except TimeoutError:
        raise WorkerUnavailable(f"it did not answer for {SILENCE:g} s") from None
    welcome = pb.Welcome() if first is grpc.aio.EOF else parse_response(first).welcome
    if welcome.version != LINK_VERSION:
        versions = f"it speaks version {welcome.version} of the link, this frontend version {LINK_VERSION}"
        raise WorkerUnavailable(f"{versions}: run both in one version of Selvage")
    if welcome.fingerprint != fingerprint:
        raise WrongReply("it welcomes with another model's fingerprint than its card has")
    return call, welcome.instance
