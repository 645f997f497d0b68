"""The fleet: all workers of this frontend and the models that they serve; the services' `Workers`. Knows no gRPC."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import NamedTuple

import structlog

from frontend_service.workers import split_job
from frontend_service.workers.addresses import REFRESH_SECONDS, addresses_of, host_of
from frontend_service.workers.interface import ServedModel
from frontend_service.workers.link import WorkerLink
from frontend_service.workers.pins import ANY_MODEL, Pins
from frontend_service.workers.transport import WorkerTransport
from frontend_service.workers.worker_choice import WorkerChoice
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
from shared.tasks import either
from shared.terms import Deadline, RequestTerms

PLAIN_TEXT = WorkerTransport()

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
        pins: Pins = ANY_MODEL,
    ) -> None:
        """`targets`: HOST:PORT, or dns:///NAME:PORT with a worker at each address of the name.

        `message_threads`: where large messages are made and read. `on_ready` is called with whether any model is
        served: at the start, and whenever that changes. `pins`: the models that may be served.
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

        See `shared.estimate` for the wait. May be read from another thread.
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

    async def run(self, model: ServedModel, job: Job) -> JobResult:
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
                result = await self._run_once(model, job, refusing, suspects)
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
        return _not_aside([link for link in self._links.values() if _serves(link, model) and link not in refusing])

    async def _run_once(
        self, model: ServedModel, job: Job, refusing: set[WorkerLink], suspects: set[WorkerLink]
    ) -> JobResult:
        """Runs a job on one worker, or in parts on several. For `refusing` and `suspects` see `_run_on`."""
        candidates = self._candidates(model, refusing)
        if not candidates:
            raise WorkerUnavailable(f"no worker with this model is left: {self._why()}", retry_after=1.0)
        best, waits = self._choice.best(candidates, job)
        queries = split_job.shared_queries(job)
        if queries is None or len(candidates) == 1 or job.tokens.total < 2 * split_job.LEAST_PART_TOKENS:
            return await _run_on(best, job, refusing, suspects)
        return await _run_in_parts(job, queries, waits, refusing, suspects)

    def check_terms(self, terms: RequestTerms) -> None:
        """Raises Overloaded for a request that no worker could answer in time, however small it is."""
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

    async def _follow_changes(self) -> None:
        """After each change of a link, decides which models are served, and calls `on_ready` as `__init__` says."""
        ready: bool | None = None
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._choose_models()
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
                stays = current is not None and any(_is_same(other, current) for _, other in serving)
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
                    hosts |= dict.fromkeys(await addresses_of(target), host_of(target))
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
            self._changed.set()
            await asyncio.sleep(REFRESH_SECONDS)

    def _link_to(self, address: str, host: str) -> WorkerLink:
        return WorkerLink(
            address, host, self._transport, self._message_threads, on_change=self._changed.set, pins=self._pins
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
    return _key(first.card) == _key(second.card)


def _serves(link: WorkerLink, model: ServedModel) -> bool:
    return any(_is_same(served, model) for served in link.serving)


def _not_aside(links: list[WorkerLink]) -> list[WorkerLink]:
    """The links whose workers are not set aside; all where all are, so that the last one that serves still does."""
    return [link for link in links if not link.aside] or links


async def _run_on(link: WorkerLink, job: Job, refusing: set[WorkerLink], suspects: set[WorkerLink]) -> JobResult:
    """Runs a job on one worker, which is added to `refusing` if it gives the job back.

    If it fails the job, as it failed those before, it is added to both. Not so where it was lost with the job: the job
    may have done that, and would do it to another.
    """
    idle = not link.estimate(1, Priority.DEFAULT, "").wait
    try:
        result = await link.run(job)
    except GivenBack:
        refusing.add(link)
        raise
    except SelvageError as error:
        if link.attached and not isinstance(error, DeadlineExceeded | LimitExceeded):
            if idle or not isinstance(error, Overloaded):  # a busy worker is right to refuse
                link.outliers.failed()
            if link.outliers.suspected:
                refusing.add(link)
                suspects.add(link)
        raise
    link.outliers.answered()
    return result


async def _run_in_parts(
    job: Job, queries: int, waits: Mapping[WorkerLink, float], refusing: set[WorkerLink], suspects: set[WorkerLink]
) -> JobResult:
    """Runs a job on several workers, a part on each. A part that fails fails the job and cancels the other parts."""
    lengths = job.tokens.lengths[queries:]
    links = sorted(waits, key=waits.__getitem__)[: job.tokens.total // split_job.LEAST_PART_TOKENS]
    workers = [split_job.SplitWorker(wait=waits[link], speed=link.speed) for link in links]
    runs = split_job.cut_runs(lengths, split_job.token_shares(sum(lengths), workers))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_run_on(link, split_job.job_part(job, queries, run), refusing, suspects))
                for link, run in zip(links, runs, strict=True)
                if run
            ]
    except ExceptionGroup as group_error:  # not except*, which would raise a group again
        raise group_error.exceptions[0] from None
    return split_job.join_results(queries, [task.result() for task in tasks])
