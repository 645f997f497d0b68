"""What a row of a published table is: its model, its requests, who sends them, and the settings of both servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.workloads import MINILM, NAME, Kind, Workload

OURS, VLLM = "selvage", "vLLM"
"""Servers, as results name them."""
STEP_ROWS = "step-rows"
"""The row without a server: see `splitting.py`."""
LEAST_COSINE = "least cosine"
"""The figure by which answers agree."""
Settings = tuple[str, ...]
"""Flags of a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """`clients` that send the requests of a workload in turn; each waits for its answer before it sends the next.

    `requests`: so many in all, instead of a number of seconds; 0 for the seconds.
    """

    workload: Workload
    clients: int
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a server is asked at one time. Figures are those of `stream`; `beside` loads the server meanwhile."""

    name: str
    stream: Stream
    beside: Stream | None = None

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All streams, the measured one first."""
        return (self.stream,) if self.beside is None else (self.stream, self.beside)

    def asking(self, requests: int) -> "Case":
        """The same with so many requests of the measured stream, or the seconds for 0."""
        return replace(self, stream=replace(self.stream, requests=requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a published table.

    `published`: its source and figures. `max_tokens`: the longest text that both servers take. `ours`, `vllm`: flags by
    the name of a setting; every setting is a side of its own. `priorities`: that of the measured stream's calls, by the
    name of a setting of ours; the default for the others. `frontends`: how many of ours, by the name of a setting, if
    more than one. `reconnecting`: a connection a request, as the published client makes. `seconds`: of each case
    that counts no requests. `layers`: layers of a random model; 0 for those of its shape.
    `projected`: numbers of a token row of a ColBERT model, which has a projection; 0 for other models.
    `headline`: the case that README shows, by its place. `latency`: the row is about the slowest answers, not about a
    rate. `offline`: the first case's requests are answered without a server as well, one at a time, in the process that
    has the model.
    """

    name: str
    says: str
    published: str
    model: str
    dtype: str
    max_tokens: int
    cases: tuple[Case, ...]
    ours: Mapping[str, Settings] = field(default_factory=lambda: {"": ()})
    vllm: Mapping[str, Settings] = field(default_factory=lambda: {"": ()})
    priorities: Mapping[str, str] = field(default_factory=dict)
    frontends: Mapping[str, int] = field(default_factory=dict)
    reconnecting: bool = False
    seconds: float = 20.0
    layers: int = 0
    projected: int = 0
    headline: int = 0
    latency: bool = False
    offline: bool = False

    @property
    def kind(self) -> Kind:
        """What the first case asks for; all cases of a row ask for the same."""
        return self.cases[0].stream.workload.kind

    def short(self) -> "Row":
        """The first case alone, with at most two requests where they are counted."""
        first = self.cases[0]
        return replace(self, cases=(first.asking(min(first.stream.requests, 2)),))

    def case(self, name: str) -> Case:
        """Finds a case by its name. Raises StopIteration where there is none."""
        return next(case for case in self.cases if case.name == name)


def model_name(model: str) -> str:
    """Names a model as both servers do."""
    return NAME if model == MINILM else model.removeprefix("random:")
