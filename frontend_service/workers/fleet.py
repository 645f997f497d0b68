"""All workers and their models, together the `Worker` of the service. Knows no transport."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from math import inf

import structlog

from frontend_service.workers import split_job as splitting
from frontend_service.workers.addresses import REFRESH_SECONDS, addresses_of, host_of
from frontend_service.workers.interface import ServedModel
from frontend_service.workers.link import Link
from frontend_service.workers.transport import WorkerTransport
from shared.card import ModelCard
from shared.deadline import Deadline
from shared.errors import GivenBack, Overloaded, UnknownModel, WorkerUnavailable, clip
from shared.estimate import MARGIN, UNREAD_MARGIN, Estimate, retry_after
from shared.jobs import Job, JobResult, Priority
from shared.terms import RequestTerms
from shared.together import either

PLAIN = WorkerTransport()

log = structlog.get_logger("fleet")


class Fleet:
    """A name stands for one model at a time: it stays as long as a worker with it serves.

    Workers that bring another model of the same name wait, and take over when the last one of it has gone: vectors of
    two models are never mixed.
    """

    def __init__(
        self,
        targets: Sequence[str],
        threads: Executor,
        on_ready: Callable[[bool], Awaitable[None]],
        way: WorkerTransport = PLAIN,
    ) -> None:
        """`targets`: HOST:PORT or dns:///NAME:PORT, each address of the name a worker. `on_ready` is told whether any
        model is served, whenever that changes.
        """
        self._way = way
        self._targets, self._threads, self._on_ready = targets, threads, on_ready
        self._links: dict[str, Link] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._served: dict[str, ServedModel] = {}
        self._aliases: dict[str, set[tuple[str, str]]] = {}
        self._waiting: set[str] = set()
        self._changed = asyncio.Event()
        self._unresolved = ""
        self.refused = Counter(deadline=0, queue_seconds=0)
        """Requests and jobs so far, because nobody could answer them in time."""

    @property
    def workers(self) -> dict[str, int]:
        """How many serve each model that is known; may be read from another thread."""
        found: Counter[str] = Counter()
        for link in list(self._links.values()):
            if link.model is not None:
                found[link.model.card.id] += link.serving is not None
        return found

    @property
    def waits(self) -> dict[str, float]:
        """Seconds, at most, until the turn of a small new job of each model that is served; the same holds."""
        found: dict[str, float] = {}
        for link in list(self._links.values()):
            served = link.serving
            if served is not None:
                name, wait = served.card.id, link.wait(1, Priority.DEFAULT, "")
                found[name] = min(found.get(name, wait), wait)
        return found

    def model(self, name: str) -> ServedModel:
        """See `Worker`."""
        meant = self._aliases.get(name, set())
        called = {identity for identity, _ in meant} or {name}
        model = self._served.get(min(called)) if len(called) == 1 else None
        if model is not None and (not meant or _key(model.card) in meant):
            return model
        known = sorted({card.id for card in self._cards()})
        if not name and len(known) == 1:
            for only in self._served.values():
                return only
        elif not name and known:  # also while but one of them serves: else its vectors would pass for the other's
            raise UnknownModel(f"there are several models, name one: {', '.join(known)}", field="model")
        elif len(called) > 1:
            raise UnknownModel(f"{clip(name)} may be any of {', '.join(sorted(called))}: name one", field="model")
        elif known and not called <= {*known}:
            raise UnknownModel(f"no model is called {clip(name)}; there is {', '.join(known)}", field="model")
        elif model is not None:
            why = f"{clip(name)} waits until no worker serves the other model that is called {model.card.id}"
            raise WorkerUnavailable(why, retry_after=1.0)
        raise WorkerUnavailable(f"the worker is not ready: {self._why()}", retry_after=1.0)

    def models(self) -> tuple[ServedModel, ...]:
        """See `Worker`."""
        if not self._served:
            raise WorkerUnavailable(f"the worker is not ready: {self._why()}", retry_after=1.0)
        return tuple(self._served[name] for name in sorted(self._served))

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        """See `Worker`: by the worker that would be done with it first; by another one if that does not take it."""
        refusing: set[Link] = set()
        deadline = None if job.remaining is None else Deadline.after(job.remaining)
        while True:
            try:
                return await self._run(model, job, refusing)
            except GivenBack as error:
                if not self._able(model, refusing):
                    raise WorkerUnavailable(error.message, retry_after=error.retry_after) from None
            job = job if deadline is None else replace(job, remaining=deadline.remaining())

    def _able(self, model: ServedModel, refusing: Collection[Link]) -> list[Link]:
        return [link for link in self._links.values() if _serves(link, model) and link not in refusing]

    async def _run(self, model: ServedModel, job: Job, refusing: set[Link]) -> JobResult:
        able = self._able(model, refusing)
        if not able:
            raise WorkerUnavailable(f"no worker with this model is left: {self._why()}", retry_after=1.0)
        tokens = job.tokens.total
        waits = {link: link.wait(tokens, job.priority, job.key) for link in able}
        best = min(able, key=lambda link: waits[link] + link.takes(tokens))
        self._check(Estimate(wait=waits[best], takes=best.takes(tokens)), job.remaining, MARGIN)
        head = splitting.shared_head(job)
        if head is None or len(able) == 1 or tokens < 2 * splitting.LEAST_TOKENS:
            return await _ask(best, job, refusing)
        return await _in_parts(job, head, waits, refusing)

    def check(self, terms: RequestTerms) -> None:
        """Refuses a request that nobody could answer in time, however small it is. Raises Overloaded."""
        waits = {
            link: link.wait(1, terms.priority, terms.key) for link in self._links.values() if link.serving is not None
        }
        if waits:
            best = min(waits, key=waits.__getitem__)
            self._check(Estimate(wait=waits[best]), terms.deadline.remaining(), UNREAD_MARGIN)
            self._check_queue(best, waits[best], terms)

    async def supervise(self) -> None:
        """Never returns."""
        try:
            await either(self._resolve(), self._tell())
        finally:
            for task in self._following.values():
                task.cancel()

    async def _tell(self) -> None:
        """Settles who serves what after each change, and tells whether anybody does."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            before = bool(self._served)
            self._settle()
            if before != bool(self._served) or not self._served:
                await self._on_ready(bool(self._served))

    def _cards(self) -> list[ModelCard]:
        """Cards of all workers that have told one, also of those that do not serve at the moment."""
        return [link.model.card for link in self._links.values() if link.model is not None]

    def _settle(self) -> None:
        """Which model each name stands for."""
        self._aliases = _aliases(self._cards())
        serving = {target: model for target, link in self._links.items() if (model := link.serving) is not None}
        served: dict[str, ServedModel] = {}
        for target, model in serving.items():
            name, current = model.card.id, self._served.get(model.card.id)
            stays = current is not None and any(_same(other, current) for other in serving.values())
            if current is None or not stays:
                served.setdefault(name, model)
            else:
                served[name] = current
            if _same(model, served[name]):
                self._waiting.discard(target)
            elif target not in self._waiting:
                self._waiting.add(target)
                log.warning("another model of that name is served; waiting", target=target, model=name)
        for name, model in served.items():
            old = self._served.get(name)
            if old is not None and not _same(old, model):
                log.warning("another model took over", model=name, fingerprint=model.card.fingerprint)
        self._served = served

    async def _resolve(self) -> None:
        """Follows every address of every target, and lets those go that have left both their name and us."""
        while True:
            found: dict[str, str] = {}
            for target in self._targets:
                try:
                    found |= dict.fromkeys(await addresses_of(target), host_of(target))
                except (OSError, ValueError) as error:  # the latter where the name is none
                    self._unresolved = f"{target} has no address: {error}"
            for address in set(found) - set(self._links):
                link = self._links[address] = Link(address, found[address], self._way, self._threads, self._changed.set)
                self._following[address] = asyncio.create_task(link.follow())
            for address in set(self._links) - set(found):
                if not self._links[address].attached and found:
                    self._following.pop(address).cancel()
                    del self._links[address]
            self._changed.set()
            await asyncio.sleep(REFRESH_SECONDS)

    def _check(self, estimate: Estimate, remaining: float | None, margin: float) -> None:
        """Raises Overloaded as `Estimate.check` does, and counts it."""
        try:
            estimate.check(remaining, margin)
        except Overloaded:
            self.refused["deadline"] += 1
            raise

    def _check_queue(self, link: Link, wait: float, terms: RequestTerms) -> None:
        """Raises Overloaded where a worker would, whatever the deadline. `wait`: at least that of its class."""
        longest = link.model.queue_seconds if link.model is not None else inf
        if wait > longest and (queue := link.queue(1, terms.priority, terms.key)) > longest:
            self.refused["queue_seconds"] += 1
            raise Overloaded(
                f"it would wait up to {queue:.1f} s, the limit is {longest:g} s",
                retry_after=retry_after(queue - longest),
            )

    def _why(self) -> str:
        reasons = dict.fromkeys(link.why for link in self._links.values()) or {self._unresolved: None}
        return "; ".join(reason for reason in reasons if reason) or "no worker has answered yet"


def _aliases(cards: Sequence[ModelCard]) -> dict[str, set[tuple[str, str]]]:
    """The models that have each alias, by their keys: several where they contend for it. An id is never an alias."""
    ids = {card.id for card in cards}
    aliases: dict[str, set[tuple[str, str]]] = {}
    for card in cards:
        for alias in {*card.aliases} - ids:
            aliases.setdefault(alias, set()).add(_key(card))
    return aliases


def _key(card: ModelCard) -> tuple[str, str]:
    """What tells two models apart: an alias may be of one of two with the same id."""
    return card.id, card.fingerprint


def _same(one: ServedModel, other: ServedModel) -> bool:
    return _key(one.card) == _key(other.card)


def _serves(link: Link, model: ServedModel) -> bool:
    served = link.serving
    return served is not None and _same(served, model)


async def _ask(link: Link, job: Job, refusing: set[Link]) -> JobResult:
    try:
        return await link.run(job)
    except GivenBack:
        refusing.add(link)
        raise


async def _in_parts(job: Job, head: int, waits: Mapping[Link, float], refusing: set[Link]) -> JobResult:
    """By several workers. One part that fails fails the job, and cancels the others."""
    lengths = job.tokens.lengths[head:]
    links = sorted(waits, key=waits.__getitem__)[: job.tokens.total // splitting.LEAST_TOKENS]
    workers = [splitting.SplitWorker(wait=waits[link], speed=link.speed) for link in links]
    runs = splitting.cut(lengths, splitting.shares(sum(lengths), workers))
    asked = [(link, run) for link, run in zip(links, runs, strict=True) if run]
    try:
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(_ask(link, splitting.part(job, head, run), refusing)) for link, run in asked]
    except ExceptionGroup as failed:  # not except*: what is raised there would come as a group again
        raise failed.exceptions[0] from None
    return splitting.joined(head, [each.result() for each in parts])
