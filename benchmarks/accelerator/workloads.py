"""The named workloads as jobs of token ids: the model, the jobs, the pattern. No texts, so no tokenizer is needed.

`small` is for trying it out on a processor: tiny models, shorter documents, fewer of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.sizes import (
    CLIENT_COUNTS,
    INSTRUCTION_TOKENS,
    PROMPT_TOKENS,
    PROMPTS,
    QUERY,
    REPEATS,
    Scale,
)
from benchmarks.texts import SPECIAL, uniform_lengths
from shared.jobs import Encode, Job, Score, Work
from shared.ragged import RaggedTokens
from shared.vectors import Layout, OutputKind, ScoringMethod

LOWEST = 300
"""The lowest id in use: below it lie special tokens and punctuation, which a skiplist may name."""
UNIT = 3
"""Tokens of what a prompt of token-embed repeats."""
DENSE = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)
TOKENS = Encode(outputs=frozenset({OutputKind.MULTI_VECTOR}), normalize=True, normalize_tokens=True)
LATE = Score(method=ScoringMethod.LATE_INTERACTION, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
Pattern = Literal["closed", "burst", "against encoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`lengths`: of the sequences of each job; jobs come in turn. `in_flight`: how many at a time, in a closed loop.

    `instruction`: tokens at the start of each sequence that pooling leaves out.
    """

    name: str
    model: str
    work: Work
    lengths: Sequence[Sequence[int]]
    pattern: Pattern = "closed"
    in_flight: Sequence[int] = ()
    instruction: int = 0

    def jobs(self, vocabulary: int, seed: int) -> list[Job]:
        """Of random ids below `vocabulary`."""
        generator = np.random.default_rng(seed)
        return [self._job(lengths, generator, vocabulary) for lengths in self.lengths]

    def _job(self, lengths: Sequence[int], generator: np.random.Generator, vocabulary: int) -> Job:
        ids = generator.integers(LOWEST, vocabulary, sum(lengths)).astype("<i4").tobytes()
        skipped = (self.instruction,) * len(lengths) if self.instruction else ()
        tokens = RaggedTokens(ids=ids, lengths=tuple(lengths))
        return Job(id=0, work=self.work, tokens=tokens, prompt_lengths=skipped)


def all_of(scale: Scale, seed: int) -> dict[str, Workload]:
    """By name; those of one model stand together."""
    full = scale == "full"

    late, dense = ("jina-colbert-v2", "bge-base-en") if full else ("tiny-colbert-attended", "tiny-bert")
    documents = uniform_lengths(128, 2048 if full else 256, 0.5, seed)
    around_500 = uniform_lengths(128, 500, 0.02, seed)
    found = (
        Workload(
            name="colbert-rerank",
            model=late,
            work=LATE,
            lengths=[(QUERY, length) for length in documents],
            in_flight=(64,),
        ),
        Workload(
            name="big-rerank",
            model=late,
            work=LATE,
            lengths=[(QUERY, *(256,) * (1000 if full else 20))],
            pattern="against encoder",
        ),
        Workload(
            name="instruct-burst",
            model="GritLM-7B" if full else "tiny-mistral-bidirectional",
            work=DENSE,
            lengths=[(PROMPT_TOKENS,)] * (PROMPTS if full else PROMPTS // 20),
            pattern="burst",
            instruction=INSTRUCTION_TOKENS + 1,  # and what stands before it
        ),
        Workload(
            name="token-embed",
            model="Qwen3-Embedding-0.6B" if full else "tiny-qwen3",
            work=TOKENS,
            lengths=[[UNIT * repeats + SPECIAL for repeats in REPEATS]],
            in_flight=(4,),
        ),
        Workload(
            name="medium",
            model="multilingual-e5-base" if full else "tiny-xlm-roberta",
            work=DENSE,
            lengths=[(512,)] * 64,
            in_flight=(64,),
        ),
        Workload(name="short", model=dense, work=DENSE, lengths=[(32,)] * 256, in_flight=(64,)),
        Workload(
            name="clients",
            model=dense,
            work=DENSE,
            lengths=[(length,) for length in around_500],
            in_flight=CLIENT_COUNTS if full else (1, 4),
        ),
    )
    return {each.name: each for each in found}
