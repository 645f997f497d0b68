"""The named workloads: which requests, in which pattern, to which model. Knows nothing of sending.

Each has two scales. `full` is for an accelerator: shapes and sizes as published. `small` is for two cores: the model
shrinks, and lengths or counts where they must, but the pattern stays.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import lengths
from benchmarks.http_bodies import http_body
from benchmarks.load.pattern import Closed
from benchmarks.load.plan import Prepared
from benchmarks.load.target import EMBED, RERANK
from benchmarks.sizes import CLIENT_COUNTS, INSTRUCTION_TOKENS, PROMPT_TOKENS, PROMPTS, QUERY, REPEATS, Scale
from benchmarks.texts import SPECIAL, Vocabulary, uniform_lengths
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2

UNIT = "retrieval benchmark sentence "
SYNTHETIC_UNIT = "w101 w102 w103 "
"""Where the literal words would fall apart into characters: three tokens, as Qwen's tokenizer makes of them."""
UNIT_TOKENS = {True: 3, False: 4}
"""Tokens of the unit, whether synthetic; BERT's vocabulary parts "retrieval" in two."""
WRAPPER = "<|user|>\nRepresent this scientific paper title for searching relevant abstracts\n<|embed|>\n"
TITLE = "Paper {}: packed batches without padding for the retrieval of passages by late interaction"
FIRST_DIGIT = 200
SYNTHETIC_WRAPPER = " ".join(f"w{number}" for number in range(10, 10 + INSTRUCTION_TOKENS)) + " "


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A message, what it costs where that is certain, and whom it is timed with."""

    message: Any
    tokens: int | None
    kind: str = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`worker`: flags of the worker beside the model. `client_counts`: the sweep, where the workload is one."""

    name: str
    measures: str
    model: str
    method: str
    requests: tuple[Request, ...]
    pattern: Closed
    worker: Mapping[str, object] = field(default_factory=dict)
    client_counts: tuple[int, ...] = ()

    def prepared(self) -> tuple[Prepared, ...]:
        """For gRPC, serialised once."""
        return tuple(
            Prepared(body=each.message.SerializeToString(), tokens=each.tokens, kind=each.kind)
            for each in self.requests
        )

    def prepared_http(self, model: str) -> tuple[Prepared, ...]:
        """The same for a peer over HTTP that calls the model so."""
        return tuple(
            Prepared(body=http_body(each.message, model), tokens=each.tokens, kind=each.kind) for each in self.requests
        )

    def only(self, kind: str) -> "Workload":
        """With the requests of one kind alone."""
        return replace(self, requests=tuple(each for each in self.requests if each.kind == kind))


def build(name: str, *, scale: Scale = "small", seed: int = 1, model: str = "") -> Workload:
    """A workload by name. `model`: another than its own, whose vocabulary then decides the words. Raises KeyError."""
    return WORKLOADS[name](scale, seed, model)


def names() -> Sequence[str]:
    """All of them."""
    return tuple(WORKLOADS)


def _embed(texts: Sequence[str], tokens: int | None, kind: str = "all", **options: Any) -> Request:
    return Request(message=embedding_pb2.EmbedRequest(texts=texts, **options), tokens=tokens, kind=kind)


def _single_texts(words: Vocabulary, lengths: Sequence[int], seed: int, kind: str = "all") -> tuple[Request, ...]:
    """One text a request."""
    draw = random.Random(seed)
    return tuple(_embed([words.text(length, draw)], words.promise(length), kind) for length in lengths)


def _rerank(words: Vocabulary, lengths: Sequence[int], draw: random.Random, top_n: int) -> Request:
    message = ranking_pb2.RerankRequest(
        query=words.side(QUERY, draw),
        documents=[words.side(length, draw) for length in lengths],
        method=vectors_pb2.SCORING_METHOD_LATE_INTERACTION,
        top_n=top_n,
    )
    return Request(message=message, tokens=words.promise(QUERY + sum(lengths)))


def _on(scale: Scale, model: str, full: str, small: str = "minilm") -> tuple[str, Vocabulary, dict[str, object]]:
    """The model to serve, its words, and its worker's flags: MiniLM's files say 256 tokens, its positions allow 512."""
    chosen = model or (full if scale == "full" else small)
    return chosen, Vocabulary.of(chosen), {"max-tokens": 512} if chosen == "minilm" else {}


def token_embed(scale: Scale, seed: int, model: str) -> Workload:
    # Up to 578 tokens a text, which is more than MiniLM has positions for.
    chosen, words, worker = _on(scale, model, "random:Qwen3-Embedding-0.6B", "random:tiny-qwen3")
    unit = SYNTHETIC_UNIT if words.synthetic else UNIT
    tokens = words.promise(sum(REPEATS) * UNIT_TOKENS[words.synthetic] + len(REPEATS) * SPECIAL)
    texts = [unit * repeats for repeats in REPEATS]
    return Workload(
        name="token-embed",
        measures="token vectors of 16 prompts a request, 24 to 576 words each, 4 clients",
        model=chosen,
        worker=worker,
        method=EMBED,
        requests=(_embed(texts, tokens, outputs=[vectors_pb2.OUTPUT_KIND_MULTI_VECTOR]),),
        pattern=Closed(clients=4, seconds=10),
    )


def instruct_burst(scale: Scale, seed: int, model: str) -> Workload:
    chosen, words, worker = _on(scale, model, "random:GritLM-7B")
    draw = random.Random(seed)
    title = " ".join(draw.choices(words.words, k=PROMPT_TOKENS - SPECIAL - INSTRUCTION_TOKENS - 2))

    def request(number: int) -> Request:
        if words.synthetic:  # two words for the number: tiny vocabularies have fewer than 2,000
            text = f"{title} w{FIRST_DIGIT + number // 100} w{FIRST_DIGIT + number % 100}"
            return _embed([text], PROMPT_TOKENS, prompt=SYNTHETIC_WRAPPER)
        return _embed([TITLE.format(number)], None, prompt=WRAPPER)

    return Workload(
        name="instruct-burst",
        measures="2,000 requests of one prompt with an instruction (45 tokens), all at once",
        model=chosen,
        worker=worker,
        method=EMBED,
        requests=tuple(request(number) for number in range(PROMPTS)),
        pattern=Closed(clients=PROMPTS, requests=PROMPTS),
    )


def colbert_rerank(scale: Scale, seed: int, model: str) -> Workload:
    chosen, words, worker = _on(scale, model, "random:jina-colbert-v2")
    draw = random.Random(seed)
    lengths = uniform_lengths(128, 2048 if scale == "full" else 256, 0.5, seed)
    return Workload(
        name="colbert-rerank",
        measures="one query and one document by late interaction, 2,048 +- 50 % tokens (small: 256), 64 clients",
        model=chosen,
        worker=worker,
        method=RERANK,
        requests=tuple(_rerank(words, [length], draw, 1) for length in lengths),
        pattern=Closed(clients=64, seconds=10),
    )


def _big_rerank(name: str, documents: int, tokens: int) -> Callable[[Scale, int, str], Workload]:
    def big_rerank(scale: Scale, seed: int, model: str) -> Workload:
        chosen, words, worker = _on(scale, model, "random:jina-colbert-v2")
        count = documents if scale == "full" else documents // 10
        return Workload(
            name=name,
            measures=f"one query and {documents:,} documents (small: a tenth) of {tokens} tokens, one at a time",
            model=chosen,
            worker=worker,
            method=RERANK,
            requests=(_rerank(words, [tokens] * count, random.Random(seed), 10),),
            pattern=Closed(clients=1, requests=3),
        )

    return big_rerank


def clients(scale: Scale, seed: int, model: str) -> Workload:
    chosen, words, worker = _on(scale, model, "random:bge-base-en")
    return Workload(
        name="clients",
        measures="1, 2, 4 ... 128 clients with texts of 490 to 510 tokens, with 1 and 4 frontends",
        model=chosen,
        worker=worker,
        method=EMBED,
        requests=_single_texts(words, uniform_lengths(128, 500, 0.02, seed), seed),
        pattern=Closed(clients=1, seconds=10),
        client_counts=CLIENT_COUNTS,
    )


def short(scale: Scale, seed: int, model: str) -> Workload:
    chosen, words, worker = _on(scale, model, "random:bge-base-en")
    return Workload(
        name="short",
        measures="texts of 32 tokens, 64 clients",
        model=chosen,
        worker=worker,
        method=EMBED,
        requests=_single_texts(words, [32] * 256, seed),
        pattern=Closed(clients=64, seconds=10),
    )


def medium(scale: Scale, seed: int, model: str) -> Workload:
    chosen, words, worker = _on(scale, model, "random:multilingual-e5-base")
    return Workload(
        name="medium",
        measures="texts of 512 tokens, 64 clients",
        model=chosen,
        worker=worker,
        method=EMBED,
        requests=_single_texts(words, [512] * 64, seed),
        pattern=Closed(clients=64, seconds=10),
    )


def lognormal(scale: Scale, seed: int, model: str) -> Workload:
    chosen, words, worker = _on(scale, model, "random:bge-base-en")
    return Workload(
        name="lognormal",
        measures="texts of lognormal length, mean 126 tokens, 512 at most, 64 clients",
        model=chosen,
        worker=worker,
        method=EMBED,
        requests=_single_texts(words, lengths.lognormal(256, seed).tolist(), seed),
        pattern=Closed(clients=64, seconds=10),
    )


def mixed(scale: Scale, seed: int, model: str) -> Workload:
    chosen, words, worker = _on(scale, model, "random:bge-m3")
    longest = 8000 if scale == "full" else 512
    texts = list(_single_texts(words, [32] * 124, seed, "short") + _single_texts(words, [longest] * 4, seed, "long"))
    random.Random(seed).shuffle(texts)
    return Workload(
        name="mixed",
        measures="one long document (8,000 tokens; small: 512) to 31 texts of 32 tokens: what the short ones feel",
        model=chosen,
        worker=worker,
        method=EMBED,
        requests=tuple(texts),
        pattern=Closed(clients=16, seconds=10),
    )


WORKLOADS: dict[str, Callable[[Scale, int, str], Workload]] = {
    "token-embed": token_embed,
    "instruct-burst": instruct_burst,
    "colbert-rerank": colbert_rerank,
    "big-rerank": _big_rerank("big-rerank", 1000, 256),
    "bigger-rerank": _big_rerank("bigger-rerank", 10_000, 128),
    "clients": clients,
    "short": short,
    "medium": medium,
    "lognormal": lognormal,
    "mixed": mixed,
}
