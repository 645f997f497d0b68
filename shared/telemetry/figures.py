"""Types of what both processes report: rpcs, jobs, times of requests, and figures of the current state.

Services, loop and link use these types and no library of metrics or traces.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shared.errors import SelvageError
from shared.jobs import Job, JobResult

ObserveJob = Callable[[Job, JobResult | SelvageError], None]
"""Receives each job and its outcome when the job is answered."""


class RequestTimes(Protocol):
    """Where the time of a request went, in seconds; see `frontend_service.services.pipeline.Timing`."""

    @property
    def tokenize(self) -> float: ...
    @property
    def queue(self) -> float: ...
    @property
    def compute(self) -> float: ...
    @property
    def transfer(self) -> float: ...
    @property
    def postprocess(self) -> float: ...


ObserveTimes = Callable[[RequestTimes], None]


class Rpcs(Protocol):
    """Receives the start and the end of each rpc.

    `kind`: unary, client_stream, server_stream or bidi_stream; `code`: as gRPC's status codes are named.
    """

    def started(self, method: str, kind: str) -> None: ...
    def ended(self, method: str, kind: str, code: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendFigures:
    """The state of a frontend at one moment.

    `size`: bytes of requests, of their results and of replies that are not read yet; `refused`: requests so far, by
    reason; `workers`: how many serve, by model, and `aside`: how many of these are set aside; `waits`: the wait of a
    small new job in seconds (see `shared.load`), by model; `fingerprints`: of the model that each name stands for.
    """

    requests: int
    size: int
    refused: Mapping[str, int]
    workers: Mapping[str, int]
    aside: Mapping[str, int]
    waits: Mapping[str, float]
    fingerprints: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """The state of a worker at one moment; each part of the worker fills in its fields.

    `refused`: jobs so far, by reason; `cancelled_waiting`: jobs so far; `unsent`: bytes of answers that frontends have
    not read; `memory`: bytes of the device by state, empty on a processor; `padding`: tokens so far by which steps were
    filled up to the size of a captured graph; `budget`: most tokens that the next step may have; `pieces`: of long
    texts, so far; `shared_tokens`: those that were not computed so far, since another text of their step has them;
    `kept_bytes`: room that texts in pieces have for their keys and values, of `cache_bytes` in all, 0 where no text is
    cut; `waiting_for_cache`: jobs whose next text waits until its keys and values have room.
    """

    queued_tokens: int
    queued_jobs: int
    refused: Mapping[str, int]
    cancelled_waiting: int
    stalled: bool
    unsent: int = 0
    frontends: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    padding: int = 0
    budget: int = 0
    pieces: int = 0
    shared_tokens: int = 0
    kept_bytes: int = 0
    cache_bytes: int = 0
    waiting_for_cache: int = 0
