"""The rows of the published tables, as data, and their sizes by scale. Nothing here starts a server or asks one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.workloads import MINILM, NAME, PROMPTS, QUERY, SPECIAL, WIDTH, Kind, Lengths, Scale, Workload, around

OURS, VLLM = "selvage", "vLLM, all cores"
"""Sides, as results name them. By default vLLM leaves a core to itself; on few cores it is faster with all."""
Settings = tuple[str, ...]
"""Flags of a server."""
UNMARKED = ("--late-interaction=benchmarks/published/unmarked.json",)
"""Late interaction as vLLM makes it: no markers, queries as they are, and every token has a row that counts."""
QWEN, E5, BGE = "random:Qwen3-Embedding-0.6B", "random:multilingual-e5-base", "random:bge-base-en"
GRITLM = {"tiny": "random:GritLM-0.3B", "small": "random:GritLM-0.3B", "full": "random:GritLM-7B"}
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
    dtype: str
    max_tokens: int
    cases: tuple[Case, ...]
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
    """Builds all rows by name, for two cores (`small`), as published (`full`), or to try them out (`tiny`)."""
    made = (
        _token_embeddings(scale),
        _burst(scale),
        _dense(scale),
        *_short_and_medium(scale),
        _clients(scale),
        _beside(scale),
        _late(scale),
    )
    return {row.name: replace(row, layers=TINY_LAYERS) if scale == "tiny" else row for row in made}


def _token_embeddings(scale: Scale) -> Row:
    repeats = PROMPTS[:4] if scale == "tiny" else PROMPTS
    lengths = tuple(3 * times + SPECIAL for times in repeats)
    says = f"token rows of {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, three words repeated"
    apart = Workload(name="prompts", says=says, model=QWEN, kind="tokens", requests=(lengths,) * 64, period=3)
    texts = {"4 clients": apart, "4 clients, the same words in all prompts of a request": replace(apart, alike=True)}
    # Two cores take 4 to 10 s for a request: of a window, what is under way when it begins and ends would be much.
    count = 0 if scale == "full" else 8
    return Row(
        name="token-embeddings",
        says=f"{says}, as base64",
        published="PR 39533: Qwen3-Embedding-0.6B, 13.7 requests/s, 55,463 tokens/s, p99 328 ms",
        model=QWEN,
        dtype="bfloat16",
        max_tokens=8192,
        cases=tuple(
            Case(name=name, stream=Stream(workload=workload, clients=4, requests=count))
            for name, workload in texts.items()
        ),
        vllm={"": UNCHUNKED},
        reconnecting=True,
        seconds=120.0,
    )


def _burst(scale: Scale) -> Row:
    model, count = GRITLM[scale], {"tiny": 50, "small": 500, "full": 2000}[scale]
    says = f"{count:,} prompts of 45 tokens, 20 of them an instruction"
    prompts = Workload(name="prompts", says=says, model=model, requests=((45,),) * count, instruction=21)
    return Row(
        name="instruct-burst",
        says=f"{says} that the mean leaves out, all at once",
        published="PR 38139: GritLM-7B, 2,000 prompts, 288 requests/s, 13,016 tokens/s, p99 6.8 s",
        model=model,
        dtype="bfloat16",
        max_tokens=512,
        cases=(Case(name=f"{count:,} requests", stream=Stream(workload=prompts, clients=count, requests=count)),),
        vllm={"": WHOLE_MEAN},
    )


def _dense(scale: Scale) -> Row:
    count, mean = {"tiny": (8, 64), "small": (20, 2048), "full": (1000, 2048)}[scale]
    texts = _texts(QWEN, f"{mean} tokens +- 50 %", around(count, mean, 0.5))
    return Row(
        name="dense",
        says=f"{count} texts of {mean} tokens +- 50 %, all at once",
        published="PR 35127: Qwen3-0.6B, steps of 512 tokens",
        model=QWEN,
        dtype="bfloat16",
        max_tokens=8192,
        cases=(Case(name=f"{count} requests", stream=Stream(workload=texts, clients=count, requests=count)),),
        vllm={"": UNCHUNKED},
    )


def _short_and_medium(scale: Scale) -> tuple[Row, ...]:
    clients = 64 if scale == "full" else 16
    published = {
        "mean-pooling": (E5, 512, "PR 38559: multilingual-e5-base, 253 requests/s, 129,000 tokens/s"),
        "short-texts": (BGE, 32, "PR 39113: bge-base-en, 1,089 requests/s"),
    }
    return tuple(
        Row(
            name=name,
            says=f"texts of {tokens} tokens",
            published=source,
            model=model,
            dtype="bfloat16",
            max_tokens=512,
            cases=(
                Case(
                    name=f"{clients} clients",
                    stream=Stream(workload=_texts(model, f"{tokens} tokens", (tokens,) * 256), clients=clients),
                ),
            ),
        )
        for name, (model, tokens, source) in published.items()
    )


def _clients(scale: Scale) -> Row:
    counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    if scale == "full":
        model, dtype, tokens, limit, counts = BGE, "bfloat16", 500, 512, (*counts, 128)
    else:
        model, dtype, tokens, limit = MINILM, "float32", 250, 256
    texts = _texts(model, f"{tokens} tokens", around(256, tokens, 0.02))
    return Row(
        name="clients",
        says=f"texts of {tokens} tokens +- 2 %",
        published="PR 39763: 1 to 128 clients of some 500 tokens, 145,000 tokens/s at 1 client, 620,000 at 64",
        model=model,
        dtype=dtype,
        max_tokens=limit,
        cases=tuple(
            Case(name=f"{count} client{'s' * (count > 1)}", stream=Stream(workload=texts, clients=count))
            for count in counts
        ),
        vllm={"": (), MANY: ("--api-server-count", "4")},
        seconds=10.0,
    )


def _beside(scale: Scale) -> Row:
    length = 512 if scale == "tiny" else 4096
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
        dtype="bfloat16",
        max_tokens=8192,
        cases=(
            Case(name="alone", stream=short),
            *(Case(name=name, stream=short, beside=long) for name, long in loads.items()),
        ),
        vllm={SHORT_STEPS: CHUNKED},
        seconds=60.0,
        latency=True,
    )


def _late(scale: Scale) -> Row:
    counts = {"tiny": (4, 4, 20, 50), "small": (16, 8, 1000, 10_000), "full": (64, 8, 1000, 10_000)}
    clients, several, many, most = counts[scale]
    middle, short = (256, 128) if scale == "full" else (64, 16)

    def documents(count: int, tokens: int, spread: float = 0.0, requests: int = 1) -> Workload:
        lengths = around(count * requests, tokens, spread)
        parts = tuple((QUERY, *lengths[start : start + count]) for start in range(0, count * requests, count))
        says = f"a query and {count:,} documents of {tokens} tokens"
        return Workload(name="rerank", says=says, model=BGE, kind="rerank", requests=parts)

    # Of a window of 20 s, what is under way when it begins and ends would be half: counted as token rows are.
    counted = 0 if scale == "full" else 4 * clients
    first = Stream(workload=documents(several, 250, 0.2, requests=64), clients=clients, requests=counted)
    loads = (
        (first, f"{clients} clients, "),
        (Stream(workload=documents(many, middle), clients=2, requests=2), "2 clients, "),
        (Stream(workload=documents(most, short), clients=1, requests=1), "1 client, "),
    )
    return Row(
        name="late-interaction",
        says="reranks by MaxSim: a query of 32 tokens and documents that are encoded with it",
        published="PR 35330: jina-colbert-v2, 64 clients of some 2,058 tokens; 1,000 documents of 256; 10,000 of 128",
        model=BGE,
        dtype="bfloat16",
        max_tokens=512,
        cases=tuple(
            Case(name=who + stream.workload.says.partition(" and ")[2], stream=stream) for stream, who in loads
        ),
        ours=UNMARKED,
        projected=WIDTH,
    )


def _texts(model: str, says: str, lengths: Lengths) -> Workload:
    """Makes requests of one text each."""
    return Workload(name="texts", says=says, model=model, requests=tuple((length,) for length in lengths))
