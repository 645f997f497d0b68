"""The rows of the published tables, as data, and their sizes by scale. Nothing here starts a server or asks one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from benchmarks.workloads import MINILM, NAME, PROMPTS, QUERY, SPECIAL, WIDTH, Kind, Lengths, Scale, Workload, around

OURS, VLLM = "selvage", "vLLM, all cores"
"""Sides, as results name them. By default vLLM leaves a core to itself; on few cores it is faster with all."""
Settings = tuple[str, ...]
"""Flags of a server."""
UNMARKED = ("--late-interaction=benchmarks/published/unmarked.json",)
"""Late interaction as vLLM makes it: no markers, queries as they are, and every token has a row that counts."""
QWEN, E5, BGE = "random:Qwen3-Embedding-0.6B", "random:multilingual-e5-base", "random:bge-base-en"
GRITLM = "random:GritLM-0.3B"
WHOLE_MEAN = (
    "--hf-overrides",
    '{"architectures": ["MistralModel"], "is_causal": false}',
    "--pooler-config",
    '{"pooling_type": "MEAN"}',
)
"""GritLM as vLLM 0.32 still runs it, which lost that class: the instruction stays in the mean. The work is equal."""
CHUNKED = ("--enable-chunked-prefill", "--max-num-batched-tokens", "512", "--long-prefill-token-threshold", "128")
"""Steps of 512 tokens with at most 128 of a long text: the numbers of the published runs."""
UNCHUNKED = ("--no-enable-chunked-prefill",)
SHORT_STEPS = "steps of 512, chunks of 128"
"""The name of vLLM's setting with the published numbers."""
MANY = "4 API servers"
"""The name of vLLM's setting with several processes that speak HTTP."""
TINY_LAYERS = 2
"""Layers of every random model of the scale `tiny`. Widths stay: vLLM has no attention for narrow heads."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a published table.

    `published`: its source and figures. `max_tokens`: the longest text that both servers take. `ours`: flags of our
    worker. `vllm`: flags of vLLM by the name of a setting; every setting is a side of its own. `reconnecting`: a
    connection a request, as the published client makes. `seconds`: of each case that counts no requests. `layers`:
    layers of a random model; 0 for those of its shape. `projected`: numbers of a token row of a ColBERT model, which
    has a projection; 0 for other models. `latency`: the row is about the slowest answers, not about a rate.
    """

    name: str
    says: str
    published: str
    model: str
    cases: tuple[Case, ...]
    dtype: str = "bfloat16"
    max_tokens: int = 512
    ours: Settings = ()
    vllm: Mapping[str, Settings] = field(default_factory=lambda: {"": ()})
    reconnecting: bool = False
    seconds: float = 20.0
    layers: int = 0
    projected: int = 0
    latency: bool = False

    @property
    def kind(self) -> Kind:
        """What the first case asks for; all cases of a row ask for the same."""
        return self.cases[0].stream.workload.kind

    @property
    def served_name(self) -> str:
        """The name by which both servers know the model."""
        return NAME if self.model == MINILM else self.model.removeprefix("random:")

    def case(self, name: str) -> Case:
        """Finds a case by its name. Raises StopIteration where there is none."""
        return next(case for case in self.cases if case.name == name)


def rows(scale: Scale = "small") -> dict[str, Row]:
    """Builds all rows by name, for two cores (`small`), or to try them out (`tiny`)."""
    made = _small_rows(tiny=scale == "tiny")
    return {row.name: replace(row, layers=TINY_LAYERS) if scale == "tiny" else row for row in made}


def _small_rows(tiny: bool) -> Iterator[Row]:
    """Yields all rows. Where two cores take seconds for a request, requests are counted: of a window of seconds, what
    is under way when it begins and ends would be much."""
    lengths = tuple(3 * times + SPECIAL for times in PROMPTS[: 4 if tiny else None])
    says = f"token rows of {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, three words repeated"
    apart = Workload(name="prompts", says=says, model=QWEN, kind="tokens", requests=(lengths,) * 64, period=3)
    texts = {"4 clients": apart, "4 clients, the same words in all prompts of a request": replace(apart, alike=True)}
    yield Row(
        name="token-embeddings",
        says=f"{says}, as base64",
        published="PR 39533: Qwen3-Embedding-0.6B, 13.7 requests/s, 55,463 tokens/s, p99 328 ms",
        model=QWEN,
        max_tokens=8192,
        cases=tuple(_case(name, workload, clients=4, requests=8) for name, workload in texts.items()),
        vllm={"": UNCHUNKED},
        reconnecting=True,
    )
    count = 50 if tiny else 500
    says = f"{count:,} prompts of 45 tokens, 20 of them an instruction"
    prompts = Workload(name="prompts", says=says, model=GRITLM, requests=((45,),) * count, instruction=21)
    yield Row(
        name="instruct-burst",
        says=f"{says} that the mean leaves out, all at once",
        published="PR 38139: GritLM-7B, 2,000 prompts, 288 requests/s, 13,016 tokens/s, p99 6.8 s",
        model=GRITLM,
        cases=(_case(f"{count:,} requests", prompts, clients=count, requests=count),),
        vllm={"": WHOLE_MEAN},
    )
    count, mean = (8, 64) if tiny else (20, 2048)
    long = _texts(QWEN, f"{mean} tokens +- 50 %", around(count, mean, 0.5))
    yield Row(
        name="dense",
        says=f"{count} texts of {mean} tokens +- 50 %, all at once",
        published="PR 35127: Qwen3-0.6B, steps of 512 tokens",
        model=QWEN,
        max_tokens=8192,
        cases=(_case(f"{count} requests", long, clients=count, requests=count),),
        vllm={"": UNCHUNKED},
    )
    for name, model, tokens, published in (
        ("mean-pooling", E5, 512, "PR 38559: multilingual-e5-base, 253 requests/s, 129,000 tokens/s"),
        ("short-texts", BGE, 32, "PR 39113: bge-base-en, 1,089 requests/s"),
    ):
        alike = _texts(model, f"{tokens} tokens", (tokens,) * 256)
        cases = (_case("16 clients", alike, clients=16),)
        yield Row(name=name, says=alike.says, published=published, model=model, cases=cases)
    clients = _texts(MINILM, "250 tokens", around(256, 250, 0.02))
    yield Row(
        name="clients",
        says="texts of 250 tokens +- 2 %",
        published="PR 39763: 1 to 128 clients of some 500 tokens, 145,000 tokens/s at 1 client, 620,000 at 64",
        model=MINILM,
        dtype="float32",
        max_tokens=256,
        cases=tuple(
            _case(f"{count} client{'s' * (count > 1)}", clients, clients=count) for count in (1, 2, 4, 8, 16, 32, 64)
        ),
        vllm={"": (), MANY: ("--api-server-count", "4")},
        seconds=10.0,
    )
    yield _beside(512 if tiny else 4096)
    yield _late(*((4, 4, 20, 50) if tiny else (16, 8, 1000, 10_000)))


def _beside(length: int) -> Row:
    """A short text at a time, alone and beside long ones of these tokens and of twice as many."""
    short = Stream(workload=_texts(QWEN, "16 tokens", (16,) * 512), clients=1)
    loads = {
        f"beside {clients} clients of {tokens} tokens": Stream(
            workload=_texts(QWEN, f"{tokens} tokens", (tokens,) * 64), clients=clients
        )
        for clients, tokens in ((2, length), (4, 2 * length))
    }
    return Row(
        name="short-beside-long",
        says=f"a text of 16 tokens at a time, alone and {' and '.join(loads)}, whose texts are distinct",
        published="no table; what chunked prefill is for",
        model=QWEN,
        max_tokens=8192,
        cases=(
            Case(name="alone", stream=short),
            *(Case(name=name, stream=short, beside=long) for name, long in loads.items()),
        ),
        vllm={SHORT_STEPS: CHUNKED},
        seconds=60.0,
        latency=True,
    )


def _late(clients: int, several: int, many: int, most: int) -> Row:
    """Reranks of several, many and most documents."""

    def reranks(count: int, tokens: int, clients: int, requests: int, spread: float = 0.0, distinct: int = 1) -> Case:
        lengths = around(count * distinct, tokens, spread)
        parts = tuple((QUERY, *lengths[start : start + count]) for start in range(0, len(lengths), count))
        documents = f"{count:,} documents of {tokens} tokens"
        workload = Workload(name="rerank", says=f"a query and {documents}", model=BGE, kind="rerank", requests=parts)
        return _case(f"{clients} client{'s' * (clients > 1)}, {documents}", workload, clients, requests)

    return Row(
        name="late-interaction",
        says="reranks by MaxSim: a query of 32 tokens and documents that are encoded with it",
        published="PR 35330: jina-colbert-v2, 64 clients of some 2,058 tokens; 1,000 documents of 256; 10,000 of 128",
        model=BGE,
        cases=(
            reranks(several, 250, clients, 4 * clients, spread=0.2, distinct=64),
            reranks(many, 64, 2, 2),
            reranks(most, 16, 1, 1),
        ),
        ours=UNMARKED,
        projected=WIDTH,
    )


def _case(name: str, workload: Workload, clients: int, requests: int = 0) -> Case:
    return Case(name=name, stream=Stream(workload=workload, clients=clients, requests=requests))


def _texts(model: str, says: str, lengths: Lengths) -> Workload:
    """Makes requests of one text each."""
    return Workload(name="texts", says=f"texts of {says}", model=model, requests=tuple((n,) for n in lengths))
