"""The rows of the published tables, as data. Nothing here starts a server or asks one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.workloads import (
    MINILM,
    NAME,
    PROMPTS,
    QUERY,
    RANDOM,
    SPECIAL,
    WIDTH,
    Kind,
    Lengths,
    Workload,
    around,
    single,
)

VLLM = "vLLM, all cores"
"""The side of vLLM, as results name it. By default vLLM leaves a core to itself; on few cores it is faster with all."""
PATHS: dict[Kind, str] = {"dense": "/v1/embeddings", "tokens": "/pooling", "rerank": "/rerank"}
"""Where requests of each kind go: embeddings in OpenAI's shape, token rows by vLLM's /pooling."""
COMPARED = 1
"""Seed of the texts that are compared before anything is timed."""
UNMARKED = {"late-interaction": "benchmarks/published/unmarked.json"}
"""Late interaction as vLLM makes it: no markers, queries as they are, and every token has a row that counts."""
QWEN, E5, BGE = (f"{RANDOM}{name}" for name in ("Qwen3-Embedding-0.6B", "multilingual-e5-base", "bge-base-en"))
GRITLM = f"{RANDOM}GritLM-0.3B"
WHOLE_MEAN = (
    *("--hf-overrides", '{"architectures": ["MistralModel"], "is_causal": false}'),
    *("--pooler-config", '{"pooling_type": "MEAN"}'),
)
"""GritLM as vLLM 0.32 still runs it, which lost that class: the instruction stays in the mean. The work is equal."""
CHUNKED = ("--enable-chunked-prefill", "--max-num-batched-tokens", "512", "--long-prefill-token-threshold", "128")
"""Steps of 512 tokens with at most 128 of a long text: the numbers of the published runs."""
UNCHUNKED = ("--no-enable-chunked-prefill",)
QUICK_LAYERS = 2
"""Layers of every random model of a quick run. Widths stay: vLLM has no attention for narrow heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a server is asked at one time: `clients` send the requests of a workload in turn, each after an answer.

    `requests`: so many in all, instead of a number of seconds; 0 for the seconds. `beside`: loads the server meanwhile;
    figures are of the case alone.
    """

    name: str
    workload: Workload
    clients: int
    requests: int = 0
    beside: "Case | None" = None


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
    cases: tuple[Case, ...]
    dtype: str = "bfloat16"
    max_tokens: int = 512
    ours: Mapping[str, str] = field(default_factory=dict)
    vllm: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"": ()})
    reconnecting: bool = False
    seconds: float = 20.0
    layers: int = 0
    projected: int = 0
    latency: bool = False

    @property
    def model(self) -> str:
        """The model of all cases."""
        return self.cases[0].workload.model

    @property
    def kind(self) -> Kind:
        """What all cases ask for."""
        return self.cases[0].workload.kind

    @property
    def served_name(self) -> str:
        """The name by which both servers know the model."""
        return NAME if self.model == MINILM else self.model.removeprefix(RANDOM)

    def seeds(self, case: Case, number: int) -> tuple[int, int]:
        """Seeds of a case's texts, and of those beside it: others in each case and round, as vLLM keeps what it
        computed."""
        first = COMPARED + 1 + 2 * (number * len(self.cases) + self.cases.index(case))
        return first, first + 1


def rows(quick: bool = False) -> dict[str, Row]:
    """Builds all rows by name, for two cores. `quick`: smaller ones, which show that a row works."""
    made = (
        token_embeddings(PROMPTS[:4] if quick else PROMPTS),
        instruct_burst(50 if quick else 500),
        dense(*((8, 64) if quick else (20, 2048))),
        alike("mean-pooling", E5, 512, "PR 38559: multilingual-e5-base, 253 requests/s, 129,000 tokens/s"),
        alike("short-texts", BGE, 32, "PR 39113: bge-base-en, 1,089 requests/s"),
        clients(),
        short_beside_long(512 if quick else 4096),
        late_interaction(*((4, 4, 20, 50) if quick else (16, 8, 1000, 10_000))),
    )
    return {row.name: replace(row, layers=QUICK_LAYERS if quick else 0) for row in made}


def token_embeddings(repeats: tuple[int, ...]) -> Row:
    """Token rows of prompts that repeat three words."""
    lengths = tuple(3 * times + SPECIAL for times in repeats)
    says = f"token rows of {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, three words repeated"
    apart = Workload(name="prompts", says=says, model=QWEN, kind="tokens", requests=(lengths,) * 64, period=3)
    texts = {"4 clients": apart, "4 clients, the same words in all prompts of a request": replace(apart, alike=True)}
    return Row(
        name="token-embeddings",
        says=f"{says}, as base64",
        published="PR 39533: Qwen3-Embedding-0.6B, 13.7 requests/s, 55,463 tokens/s, p99 328 ms",
        max_tokens=8192,
        cases=tuple(Case(name=name, workload=workload, clients=4, requests=8) for name, workload in texts.items()),
        vllm={"": UNCHUNKED},
        reconnecting=True,
    )


def instruct_burst(count: int) -> Row:
    """Many prompts at once, whose instruction the mean leaves out."""
    says = f"{count:,} prompts of 45 tokens, 20 of them an instruction"
    prompts = Workload(name="prompts", says=says, model=GRITLM, requests=((45,),) * count, instruction=21)
    return Row(
        name="instruct-burst",
        says=f"{says} that the mean leaves out, all at once",
        published="PR 38139: GritLM-7B, 2,000 prompts, 288 requests/s, 13,016 tokens/s, p99 6.8 s",
        cases=(Case(name=f"{count:,} requests", workload=prompts, clients=count, requests=count),),
        vllm={"": WHOLE_MEAN},
    )


def dense(count: int, mean: int) -> Row:
    """Long texts at once."""
    texts = _texts(QWEN, f"{mean} tokens +- 50 %", around(count, mean, 0.5))
    return Row(
        name="dense",
        says=f"{count} {texts.says}, all at once",
        published="PR 35127: Qwen3-0.6B, steps of 512 tokens",
        max_tokens=8192,
        cases=(Case(name=f"{count} requests", workload=texts, clients=count, requests=count),),
        vllm={"": UNCHUNKED},
    )


def alike(name: str, model: str, tokens: int, published: str) -> Row:
    """Texts of one length from 16 clients."""
    texts = _texts(model, f"{tokens} tokens", (tokens,) * 256)
    return Row(
        name=name,
        says=texts.says,
        published=published,
        cases=(Case(name="16 clients", workload=texts, clients=16),),
    )


def clients() -> Row:
    """From 1 client to 64."""
    texts = _texts(MINILM, "250 tokens", around(256, 250, 0.02))
    return Row(
        name="clients",
        says=f"{texts.says} +- 2 %",
        published="PR 39763: 1 to 128 clients of some 500 tokens, 145,000 tokens/s at 1 client, 620,000 at 64",
        dtype="float32",
        max_tokens=256,
        cases=tuple(
            Case(name=f"{count} client{'s' * (count > 1)}", workload=texts, clients=count)
            for count in (1, 2, 4, 8, 16, 32, 64)
        ),
        vllm={"": (), "4 API servers": ("--api-server-count", "4")},
        seconds=10.0,
    )


def short_beside_long(length: int) -> Row:
    """A short text at a time, alone and beside long ones of these tokens and of twice as many."""
    alone = Case(name="alone", workload=_texts(QWEN, "16 tokens", (16,) * 512), clients=1)
    loads = [
        Case(
            name=f"beside {count} clients of {tokens} tokens",
            workload=_texts(QWEN, f"{tokens} tokens", (tokens,) * 64),
            clients=count,
        )
        for count, tokens in ((2, length), (4, 2 * length))
    ]
    names = " and ".join(load.name for load in loads)
    return Row(
        name="short-beside-long",
        says=f"a text of 16 tokens at a time, alone and {names}, whose texts are distinct",
        published="no table; what chunked prefill is for",
        max_tokens=8192,
        cases=(alone, *(replace(alone, name=load.name, beside=load) for load in loads)),
        vllm={"steps of 512, chunks of 128": CHUNKED},
        seconds=60.0,
        latency=True,
    )


def late_interaction(clients: int, several: int, many: int, most: int) -> Row:
    """Reranks of several, many and most documents."""

    def reranks(count: int, tokens: int, clients: int, requests: int, spread: float = 0.0, distinct: int = 1) -> Case:
        lengths = around(count * distinct, tokens, spread)
        parts = tuple((QUERY, *lengths[start : start + count]) for start in range(0, len(lengths), count))
        documents = f"{count:,} documents of {tokens} tokens"
        workload = Workload(name="rerank", says=f"a query and {documents}", model=BGE, kind="rerank", requests=parts)
        name = f"{clients} client{'s' * (clients > 1)}, {documents}"
        return Case(name=name, workload=workload, clients=clients, requests=requests)

    return Row(
        name="late-interaction",
        says="reranks by MaxSim: a query of 32 tokens and documents that are encoded with it",
        published="PR 35330: jina-colbert-v2, 64 clients of some 2,058 tokens; 1,000 documents of 256; 10,000 of 128",
        cases=(
            reranks(several, 250, clients, 4 * clients, spread=0.2, distinct=64),
            reranks(many, 64, 2, 2),
            reranks(most, 16, 1, 1),
        ),
        ours=UNMARKED,
        projected=WIDTH,
    )


def _texts(model: str, says: str, lengths: Lengths) -> Workload:
    """Makes requests of one text each."""
    return Workload(name="texts", says=f"texts of {says}", model=model, requests=single(lengths))
