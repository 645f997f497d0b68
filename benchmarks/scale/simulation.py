"""Workers and frontends in virtual time: the real fleet, links, admission and scheduler, and engines that only wait.

Of a frontend, the parts that take its core are a queue with a set time a request; all other code is the services' own.
Clients are those of the load generator: requests come when they are due, whatever the answers do.
"""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import cycle, repeat
from random import getrandbits
from typing import Any

from benchmarks.load import loops, outcome
from benchmarks.load.loops import REFUSED, Call, Sender
from benchmarks.load.outcome import EXPIRED, OK
from benchmarks.scale.timed_engine import StepTime
from benchmarks.scale.timed_worker import QUEUED_TOKENS, card, servicer_of, timed_driver, tokenizer
from benchmarks.scale.virtual_link import VirtualNetwork, VirtualTransport
from frontend_service.tokenizing.model_texts import ModelTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.workers.fleet import Fleet
from frontend_service.workers.interface import ServedModel
from frontend_service.workers.link import WorkerLink
from shared.deadline import Deadline
from shared.errors import Overloaded, SelvageError, WorkerUnavailable
from shared.jobs import Encode, Job
from shared.offload import Inline
from shared.ragged import RaggedTokens
from shared.terms import RequestTerms
from shared.vectors import OutputKind

WIDTH = 8
"""Numbers of a row: few, since rows take no time of their own here."""
LONGEST, TRIES_AGAIN = 300.0, 1.0
"""Seconds of a request without a deadline; seconds until a client tries again where no wait is told."""
WORK = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`time`, `step_tokens`: of each worker. `latency`: seconds of a message, one way. `request_seconds`: what a
    request takes of a frontend's core, and `refusal_seconds` of this is spent before it can be refused. `slow`: the
    time of all workers but the first, where these differ."""

    workers: int
    frontends: int
    time: StepTime
    step_tokens: int
    latency: float
    request_seconds: float
    refusal_seconds: float
    slow: StepTime | None = None

    def capacity(self, tokens: int) -> float:
        """Most requests/s of so many tokens: what all workers compute in full steps, or all frontends bear."""
        texts = self.step_tokens // tokens
        return min(
            self.workers * texts / self.time.seconds(texts * tokens),
            self.frontends / self.request_seconds,
        )

    def lone_seconds(self, tokens: int) -> float:
        """Seconds of a request of so many tokens that waits for nobody."""
        return 4 * self.latency + self.request_seconds + self.time.seconds(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """An open load: requests of `tokens` tokens in `texts` texts, at `rate`, counted for `seconds` after `warmup`.

    `keys`: see `loops.senders`. `deadline`: of each request. `loses`: whether a worker goes in the middle.
    """

    rate: float
    tokens: int
    seconds: float
    warmup: float
    deadline: float
    keys: str = ""
    seed: int = 1
    loses: bool = False
    texts: int = 1


class SimulatedFleet(Fleet):
    """A fleet whose links know the model, as links that attach again do: none fetches the tokenizer."""

    def __init__(self, *arguments: Any, model: ServedModel) -> None:
        super().__init__(*arguments)
        self._known_model = model

    def _link_to(self, address: str, host: str) -> WorkerLink:
        link = super()._link_to(address, host)
        link._last, link.models = self._known_model, (self._known_model,)
        return link


class SimulatedFrontend:
    """A frontend with one core, which one request after the other has."""

    def __init__(self, fleet: Fleet, scale: Scale) -> None:
        self.fleet, self._scale, self._free = fleet, scale, 0.0

    async def answer(self, tokens: RaggedTokens, key: str, seconds: float) -> None:
        """Answers a request within `seconds`. Raises what the services raise, and TimeoutError."""
        scale, terms = self._scale, RequestTerms(deadline=Deadline.after(seconds), key=key)
        async with asyncio.timeout(seconds):
            await self._spend(scale.refusal_seconds)
            self.fleet.check_terms(terms)
            half = (scale.request_seconds - scale.refusal_seconds) / 2
            await self._spend(half)
            remaining = terms.deadline.remaining()
            job = Job(id=getrandbits(63), work=WORK, tokens=tokens, key=key, remaining=remaining)
            await self.fleet.run(self.fleet.model(""), job)
            await self._spend(half)

    async def _spend(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        self._free = max(clock(), self._free) + seconds
        await asyncio.sleep(self._free - clock())


class SimulatedTarget:
    """All frontends, in rotation; clients try again where no worker serves, as ours do."""

    def __init__(self, frontends: Sequence[SimulatedFrontend], offered: Offered, latency: float) -> None:
        self._frontends, self._latency = cycle(frontends), latency
        self._seconds = offered.deadline or LONGEST
        self._tokens = RaggedTokens.of([[0] * (offered.tokens // offered.texts)] * offered.texts)

    async def call(self, request: int, sender: Sender) -> str:
        """See `Target`."""
        clock = asyncio.get_running_loop().time
        end, key = clock() + self._seconds, dict(sender).get("selvage-key", "")
        while True:
            status, again = await self._once(key, end - clock())
            if again is None or clock() + again >= end:
                return status
            await asyncio.sleep(again)

    async def _once(self, key: str, seconds: float) -> tuple[str, float | None]:
        """Asks one frontend; gives the status, and the wait before another try where one is worth it."""
        await asyncio.sleep(self._latency)
        try:
            await next(self._frontends).answer(self._tokens, key, seconds)
        except TimeoutError:
            return EXPIRED, None
        except Overloaded:
            return REFUSED, None
        except WorkerUnavailable as error:
            return error.status, error.retry_after or TRIES_AGAIN
        except SelvageError as error:
            return error.status, None
        await asyncio.sleep(self._latency)
        return OK, None


async def simulate(scale: Scale, offered: Offered) -> dict[str, float]:
    """Runs a load; gives its figures. Where there are keys, also how fairly they were served."""
    event_loop, network, tasks = asyncio.get_running_loop(), VirtualNetwork(scale.latency), list[asyncio.Task[Any]]()
    addresses = [f"worker-{number}:1" for number in range(scale.workers)]
    model_card, threads = card(WIDTH), Inline()
    for address in addresses:
        driver = timed_driver((scale.slow if tasks else None) or scale.time, scale.step_tokens, WIDTH)
        network.servicers[address] = servicer_of(driver, model_card, b"", threads)
        tasks.append(asyncio.create_task(driver.run()))
    texts = ModelTexts(tokenizer=ModelTokenizer(tokenizer().to_str().encode(), model_card))
    model = ServedModel(card=model_card, texts=texts, queued_tokens=QUEUED_TOKENS)
    frontends = [
        SimulatedFrontend(_fleet(addresses, threads, network, f"frontend-{number}", model), scale)
        for number in range(scale.frontends)
    ]
    tasks += [asyncio.create_task(frontend.fleet.supervise()) for frontend in frontends]
    while any(sum(front.fleet.workers.values()) < scale.workers for front in frontends):  # noqa: ASYNC110 - virtual
        await asyncio.sleep(0.1)
    gc.collect()
    gc.freeze()  # as the services do: thousands of links would be looked at again and again
    start = event_loop.time() + offered.warmup
    if offered.loses:
        event_loop.call_at(start + offered.seconds / 2, network.lose, addresses[0])
    target, who = SimulatedTarget(frontends, offered, scale.latency), loops.senders(offered.keys, "")
    gaps = loops.gaps(offered.rate, offered.seed)
    calls = await loops.opened(target, repeat(0), who, gaps, start + offered.seconds)
    for task in tasks:
        task.cancel()
    await network.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    gc.unfreeze()
    inside, seconds = outcome.counted(calls, start, start + offered.seconds, is_open=True)
    figures = outcome.figures(inside, seconds, [offered.tokens], offered.deadline)
    return figures | ({LEAST_SHARE: 100 * least_share(inside)} if offered.keys else {})


LEAST_SHARE = "least of a key, % of its fair share"


def least_share(calls: Sequence[Call]) -> float:
    """What the key that was served worst got of its fair share: the least it can get where all are served evenly.

    Shares are max-min fair: what was served in all, divided evenly, and what a key did not ask for among the others.
    """
    requested: dict[Sender, int] = {}
    served: dict[Sender, int] = {}
    for call in calls:
        requested[call.sender] = requested.get(call.sender, 0) + 1
        served[call.sender] = served.get(call.sender, 0) + (call.status == OK)
    shares = fair_shares(requested, sum(served.values()))
    return min(served[sender] / share for sender, share in shares.items())


def fair_shares(requested: Mapping[Sender, int], served: float) -> dict[Sender, float]:
    """Divides `served` evenly among those who ask, none getting more than it asked for."""
    shares, left = dict[Sender, float](), served
    for number, (sender, wanted) in enumerate(sorted(requested.items(), key=lambda pair: pair[1])):
        shares[sender] = min(wanted, left / (len(requested) - number))
        left -= shares[sender]
    return shares


def _fleet(
    addresses: Sequence[str], threads: Executor, network: VirtualNetwork, name: str, model: ServedModel
) -> SimulatedFleet:
    async def on_ready(ready: bool) -> None:
        """Nobody asks for the health of these."""

    transport: Any = VirtualTransport(network, name)
    return SimulatedFleet(addresses, threads, on_ready, transport, model=model)
