"""The fleet: all workers of this frontend, the models that they serve, and which of them gets a job. Knows no gRPC.

Other frontends hear the same reports of load. If all sent their jobs where the last reports show the shortest wait,
these would stand in line there beside idle workers. So each frontend draws, for each worker, the work that others may
have sent there since its report, by what they lately sent: the more that is and the older reports are, the more evenly
workers are chosen. Where others send little, next to nothing is drawn, and a fast worker is chosen before slow ones.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import NamedTuple

import structlog

from frontend_service.domain.limits import ExpectedReply
from frontend_service.services.pipeline import ServedModel
from frontend_service.workers.link import WorkerLink
from frontend_service.workers.transport import WorkerTransport, addresses_of, name_in
from shared.caller import Deadline, RequestTerms
from shared.card import ModelCard
from shared.errors import (
    DeadlineExceeded,
    GivenBack,
    LimitExceeded,
    Overloaded,
    SelvageError,
    UnknownModel,
    WorkerUnavailable,
    clip,
)
from shared.jobs import Job, JobResult, Priority
from shared.load import UNREAD_MARGIN
from shared.tasks import either

PLAIN_TEXT = WorkerTransport()
REFRESH_SECONDS = 2.0
"""Seconds after which names are resolved again."""

log = structlog.get_logger("fleet")


class ModelKey(NamedTuple):
    """What tells two models apart: models with the same id may have different aliases."""

    id: str
    fingerprint: str


class Fleet:
    """Links to all workers. A model's name stands for one model at a time, as long as a worker with that model serves.

    Workers with another model of the same name stand by, and take over when the last worker of the first has gone:
    vectors of two models are never mixed.
    """

    def __init__(
        self,
        targets: Sequence[str],
        message_threads: Executor,
        on_ready: Callable[[bool], Awaitable[None]],
        transport: WorkerTransport = PLAIN_TEXT,
        pins: Collection[str] = (),
    ) -> None:
        """`targets`: HOST:PORT, or dns:///NAME:PORT with a worker at each address of the name.

        `message_threads`: where large messages are made and read. `on_ready` is called with whether any model is
        served: at the start, and whenever that changes. `pins`: the fingerprints of the models that may be
        served; none: any.
        """
        self._transport, self._pins = transport, pins
        self._targets, self._message_threads, self._on_ready = targets, message_threads, on_ready
        self._links: dict[str, WorkerLink] = {}  # by address
        self._attaching: dict[str, asyncio.Task[None]] = {}  # by address
        self._served: dict[str, ServedModel] = {}  # by id
        self._aliases: dict[str, set[ModelKey]] = {}
        self._standby: set[tuple[str, str]] = set()  # workers, by address, whose model of a name takes over later
        self._changed = asyncio.Event()
        self._unresolved = ""
        self._choice = WorkerChoice()
        self.refused = self._choice.refused

    @property
    def workers(self) -> dict[str, int]:
        """The number of workers that serve each model; 0 for a model none of whose workers serves at the moment.

        May be read from another thread.
        """
        counts: Counter[str] = Counter()
        for link in list(self._links.values()):
            for model in link.models:
                counts[model.card.id] += bool(link.serving)
        return counts

    @property
    def aside(self) -> dict[str, int]:
        """The number of workers that serve each model and are set aside. May be read from another thread."""
        counts: Counter[str] = Counter()
        for link in list(self._links.values()):
            for model in link.serving:
                counts[model.card.id] += link.aside
        return counts

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint that each model's id stands for in this frontend. May be read from another thread."""
        return {name: model.card.fingerprint for name, model in self._served.items()}

    @property
    def waits(self) -> dict[str, float]:
        """For each model that is served, the wait of a small new job where it is shortest, in seconds.

        See `shared.load` for the wait. May be read from another thread.
        """
        links: dict[str, list[WorkerLink]] = {}
        for link in list(self._links.values()):
            for served in link.serving:
                links.setdefault(served.card.id, []).append(link)
        return {
            name: min(link.estimate(1, Priority.DEFAULT, "").wait for link in _not_aside(serving))
            for name, serving in links.items()
        }

    def model(self, name: str) -> ServedModel:
        """See `Workers`. The name may be an id or an alias."""
        keys = self._aliases.get(name, set())  # of the models that have the name as an alias: none, one or several
        ids = {key.id for key in keys} or {name}
        model = self._served.get(min(ids)) if len(ids) == 1 else None
        if model is not None and (not keys or _key(model.card) in keys):
            return model
        all_ids = sorted({card.id for card in self._cards()})
        own_ids = {model.card.id for model in self._models() if not model.adapter} or {*all_ids}
        if not name and len(own_ids) == 1:
            single_model = self._served.get(min(own_ids))
            if single_model is not None:
                return single_model
        elif not name and all_ids:  # even while only one of them serves: its vectors might pass for the other's
            raise UnknownModel(f"there are several models, name one: {', '.join(all_ids)}", field="model")
        elif len(ids) > 1:
            raise UnknownModel(f"{clip(name)} may be any of {', '.join(sorted(ids))}: name one", field="model")
        elif all_ids and not ids <= {*all_ids}:
            raise UnknownModel(f"no model is called {clip(name)}; there is {', '.join(all_ids)}", field="model")
        elif model is not None:
            why = f"{clip(name)} waits until no worker serves the other model that is called {model.card.id}"
            raise WorkerUnavailable(why, retry_after=1.0)
        raise WorkerUnavailable(f"the worker is not ready: {self._why()}", retry_after=1.0)

    def models(self) -> tuple[ServedModel, ...]:
        """See `Workers`."""
        if not self._served:
            raise WorkerUnavailable(f"the worker is not ready: {self._why()}", retry_after=1.0)
        return tuple(self._served[name] for name in sorted(self._served))

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        """See `Workers`. The job goes to the worker that would end it first, then to others if that gives it back.

        If a worker that is suspected fails the job, one other is asked. If that answers, the first is set aside; else
        the job is at fault, and the first error is its own.
        """
        job = model.job(job)
        refusing, suspects = set[WorkerLink](), set[WorkerLink]()
        failure: SelvageError | None = None
        deadline = None if job.remaining is None else Deadline.after(job.remaining)
        while True:
            try:
                result = await self._run_once(model, job, expected, refusing, suspects)
            except GivenBack as error:
                if not self._candidates(model, refusing):
                    raise failure or WorkerUnavailable(error.message, retry_after=error.retry_after) from None
            except SelvageError as error:
                if failure is not None or not suspects or not self._candidates(model, refusing):
                    raise failure or error from None
                failure = error
            else:
                if failure is not None:
                    for link in suspects:
                        if link.outliers.suspected:  # it may have answered others since
                            link.set_aside(failure.message)
                return result
            job = job if deadline is None else replace(job, remaining=deadline.remaining())

    def _candidates(self, model: ServedModel, refusing: Collection[WorkerLink]) -> list[WorkerLink]:
        """The links whose workers serve a model, without those in `refusing`.

        Workers that are set aside are among them only where all are.
        """
        return _not_aside([link for link in self._links.values() if link not in refusing and _serves(link, model)])

    async def _run_once(
        self,
        model: ServedModel,
        job: Job,
        expected: ExpectedReply,
        refusing: set[WorkerLink],
        suspects: set[WorkerLink],
    ) -> JobResult:
        """Runs a job on the worker that would end it first, which is added to `refusing` if it gives the job back.

        If it fails the job, as it failed those before, it is added to both. Not so where it was lost with the job: the
        job may have done that, and would do it to another.
        """
        candidates = self._candidates(model, refusing)
        if not candidates:
            raise WorkerUnavailable(f"no worker with this model is left: {self._why()}", retry_after=1.0)
        link, wait = self._choice.best(candidates, job)
        try:
            result = await link.run(job, expected)
        except GivenBack:
            refusing.add(link)
            raise
        except SelvageError as error:
            if link.attached and not isinstance(error, DeadlineExceeded | LimitExceeded):
                if not (wait and isinstance(error, Overloaded)):  # a busy worker is right to refuse
                    link.outliers.failed()
                if link.outliers.suspected:
                    refusing.add(link)
                    suspects.add(link)
            raise
        link.outliers.answered()
        return result

    def check_terms(self, terms: RequestTerms) -> None:
        """Raises Overloaded for a request that no worker could answer in time, however small it is.

        As long as all that waits at some worker will soon be served, this takes next to no time.
        """
        soon = UNREAD_MARGIN * terms.deadline.remaining()
        for link in self._links.values():
            if link.drains_within(soon):
                return
        serving = _not_aside([link for link in self._links.values() if link.serving])
        if not any(model.texts.query_table for link in serving for model in link.serving):
            self._choice.check_terms(serving, terms)
        # Queries that are looked up here wait for no worker, and nobody knows yet what this request is.

    async def supervise(self) -> None:
        """Keeps links to the workers at all addresses of all targets. Never returns."""
        try:
            await either(self._follow_addresses(), self._follow_changes())
        finally:
            for task in self._attaching.values():
                task.cancel()

    def _follow_links(self) -> None:
        """Decides at once which models are served, so that what callers are told fits the links."""
        self._choose_models()
        self._changed.set()

    async def _follow_changes(self) -> None:
        """After each change of a link, calls `on_ready` as `__init__` says."""
        ready: bool | None = None
        while True:
            await self._changed.wait()
            self._changed.clear()
            if ready is not bool(self._served):
                ready = bool(self._served)
                await self._on_ready(ready)

    def _models(self) -> list[ServedModel]:
        """The models of all linked workers that have been attached, whether they serve at the moment or not."""
        return [model for link in self._links.values() for model in link.models]

    def _cards(self) -> list[ModelCard]:
        """The cards of these models."""
        return [model.card for model in self._models()]

    def _choose_models(self) -> None:
        """Decides which model each name and alias stands for."""
        self._aliases = _aliases(self._cards())
        serving = [(address, model) for address, link in self._links.items() for model in link.serving]
        served: dict[str, ServedModel] = {}
        for address, model in serving:
            name, current = model.card.id, self._served.get(model.card.id)
            if name not in served:
                stays = current is not None and any(_is_same(candidate, current) for _, candidate in serving)
                served[name] = current if current is not None and stays else model
            if _is_same(model, served[name]):
                self._standby.discard((address, name))
            elif (address, name) not in self._standby:
                self._standby.add((address, name))
                formats = {"dtype": model.card.dtype, "linear": model.card.linear}
                log.warning("another model of that name is served; waiting", target=address, model=name, **formats)
        for name, model in served.items():
            before = self._served.get(name)
            if before is not None and not _is_same(before, model):
                log.warning("another model took over", model=name, fingerprint=model.card.fingerprint)
        self._served = served

    async def _follow_addresses(self) -> None:
        """Makes a link for every address of every target.

        Drops the link of an address that its name lost, once the worker there is not attached any more.
        """
        while True:
            hosts: dict[str, str] = {}  # by address
            for target in self._targets:
                try:
                    hosts |= dict.fromkeys(await addresses_of(target), name_in(target))
                except (OSError, ValueError) as error:  # ValueError where the target holds no valid name
                    self._unresolved = f"{target} has no address: {error}"
            for address in set(hosts) - set(self._links):
                link = self._link_to(address, hosts[address])
                self._links[address] = link
                self._attaching[address] = asyncio.create_task(link.stay_attached())
            for address in set(self._links) - set(hosts):
                if not self._links[address].attached and hosts:
                    self._attaching.pop(address).cancel()
                    del self._links[address]
                    self._standby = {(place, name) for place, name in self._standby if place != address}
            self._follow_links()
            await asyncio.sleep(REFRESH_SECONDS)

    def _link_to(self, address: str, host: str) -> WorkerLink:
        return WorkerLink(
            address, host, self._transport, self._message_threads, on_change=self._follow_links, pins=self._pins
        )

    def _why(self) -> str:
        reasons = dict.fromkeys(link.why for link in self._links.values()) or {self._unresolved: None}
        return "; ".join(reason for reason in reasons if reason) or "no worker has answered yet"


def _aliases(cards: Sequence[ModelCard]) -> dict[str, set[ModelKey]]:
    """The models that have each alias: several where they contend for it. The id of a model is never an alias."""
    ids = {card.id for card in cards}
    aliases: dict[str, set[ModelKey]] = {}
    for card in cards:
        for alias in {*card.aliases} - ids:
            aliases.setdefault(alias, set()).add(_key(card))
    return aliases


def _key(card: ModelCard) -> ModelKey:
    return ModelKey(card.id, card.fingerprint)


def _is_same(first: ServedModel, second: ServedModel) -> bool:
    return first is second or _key(first.card) == _key(second.card)


def _serves(link: WorkerLink, model: ServedModel) -> bool:
    return any(_is_same(served, model) for served in link.serving)


def _not_aside(links: list[WorkerLink]) -> list[WorkerLink]:
    """The links whose workers are not set aside; all where all are, so that the last one that serves still does."""
    return [link for link in links if not link.aside] or links


class WorkerChoice:
    """Chooses among workers by estimates, and refuses what none could answer in time.

    `refused`: requests and jobs so far that no worker could answer in time, by the limit that they would exceed.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        """`draw`: draws a number from 0 to 1, evenly."""
        self._draw = draw
        self.refused = Counter(deadline=0, queue_seconds=0)

    def best(self, candidates: Sequence[WorkerLink], job: Job) -> tuple[WorkerLink, float]:
        """Returns the worker that is likely to end a job first, and the job's wait there in seconds.

        Raises Overloaded where every worker would end it too late, by what they reported.
        """
        tokens = job.tokens.total
        estimates = {link: link.estimate(tokens, job.priority, job.key) for link in candidates}
        in_time = [link for link, estimate in estimates.items() if estimate.in_time(job.remaining)]
        if not in_time:
            self._refuse(min(estimates.values(), key=lambda estimate: estimate.seconds).refusal(job.remaining))
        best = in_time[0]
        if len(in_time) > 1:
            drawn = 2 * _waiting_share(max(link.others for link in candidates))
            best = min(in_time, key=lambda link: estimates[link].seconds + drawn * self._draw() * link.unheard_seconds)
        return best, estimates[best].wait

    def check_terms(self, serving: Sequence[WorkerLink], terms: RequestTerms) -> None:
        """Raises Overloaded for a request that no worker could answer in time, however small it is, or that would wait
        for longer than the best worker lets jobs wait, whatever its deadline.

        This holds requests to the worker's limit itself; the worker refuses jobs only above LENIENCE times the limit.
        """
        # A request of one token has the shortest wait; the margin leaves room for the wait of what it turns out to be:
        # test_what_is_let_in_unread_is_hardly_ever_refused_once_it_is_read (test_fleet.py).
        estimates = {link: link.estimate(1, terms.priority, terms.key) for link in serving}
        if estimates:
            best = min(estimates, key=lambda link: estimates[link].wait)
            remaining, limit = terms.deadline.remaining(), best.queue_seconds
            self._refuse(estimates[best].refusal(remaining, margin=UNREAD_MARGIN, limit=limit))

    def _refuse(self, refusal: tuple[str, Overloaded] | None) -> None:
        """Counts and raises a refusal, if it is one."""
        if refusal is not None:
            reason, error = refusal
            self.refused[reason] += 1
            raise error


def _waiting_share(seconds: float) -> float:
    """How much of a second's work waits that others send in a second, where they send the busiest worker `seconds` of
    it. What they sent one worker they may send another one next, so the busiest counts for all.

    Of these `seconds` as large a share comes while the worker computes; the rest is done before anybody asks. It counts
    twice, since all go where the last report was good.
    """
    return min(1.0, 2 * seconds**2)
