"""Jobs of every kind give in pieces what they give whole, in any order of steps and among any others; and what comes
out is what transformers gives for the whole text."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from shared.jobs import Classify, Job, RaggedTokens
from support import parity
from support.every_kind import assert_alike, vector_engine, vector_jobs
from support.in_pieces import run_in_steps
from support.parity import Expected, Tables, Texts, assert_parity
from support.tiny import random_ids, run

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = random_ids([1, 15, 16, 17, 33, 49, 5, 64, 130, 3])
QUERIES, DOCUMENTS = random_ids([3, 50, 17], seed=1), random_ids([40, 2, 129, 16, 31], seed=2)
LONG_DOCUMENTS = random_ids([40, 2, 385, 130, 65], seed=2)
LONG_TEXTS = random_ids([1, 63, 65, 127, 128, 129, 193, 257, 385, 3])
"""Texts of 1 to 3 pieces of 64 or 128 tokens and a token."""
CHUNKS = [16, pytest.param(64, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)]


@contextmanager
def cut_texts(engine: ModelEngine, chunk: int) -> Iterator[None]:
    """The engine cuts texts so for a while."""
    assert not engine.model.whole_texts
    engine.cut_texts(PieceLimits(longest=chunk))
    try:
        yield
    finally:
        engine.cut_texts(PieceLimits())


def texts_for(chunk: int) -> list[list[int]]:
    """Texts of fewer tokens than a piece of so many has, and of up to three pieces and a token."""
    return TEXTS if chunk < 64 else LONG_TEXTS


def jobs_for(chunk: int = 16) -> list[Job]:
    """Encodes, scores and comparisons of every kind, of texts for such pieces."""
    return vector_jobs(texts_for(chunk), QUERIES, DOCUMENTS if chunk < 64 else LONG_DOCUMENTS)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "splade"),
    [
        ("tiny-qwen3", True),
        pytest.param("tiny-qwen3", False, marks=pytest.mark.slow),
        ("tiny-mistral", False),
        pytest.param("tiny-gemma2", True, marks=pytest.mark.slow),
        pytest.param("tiny-gemma3", True, marks=pytest.mark.slow),
        pytest.param("tiny-llama", False, marks=pytest.mark.slow),
    ],
)
def test_vectors_and_scores_in_pieces(name: str, splade: bool, dtype: str, chunk: int) -> None:
    """Every pooling, token rows, both kinds of sparse weights; all methods of scoring, as matrices and as pairs."""
    engine, jobs = vector_engine(name, dtype, splade), jobs_for(chunk)
    expected = run(engine, jobs)
    with cut_texts(engine, chunk):
        assert any(engine.open(job).room for job in jobs)
        for seed in range(2):
            assert_alike(run_in_steps(engine, jobs, seed), expected, dtype)


CLASSIFYING = [
    ("labels", Classify()),
    ("token labels", Classify(tokens=True)),
    ("token labels", Classify(tokens=True, token_id=TEXTS[8][100])),
    ("yes-no", Classify()),
]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("output", "work"), CLASSIFYING, ids=["texts", "tokens", "one token id", "yes or no"])
def test_logits_in_pieces(tables: Tables, output: str, work: Classify, dtype: str, chunk: int) -> None:
    """Of texts, of all tokens, of the tokens with one id, and of rerankers that answer yes or no."""
    engine = tables.engine("tiny-qwen3", output, dtype)
    texts = texts_for(chunk)
    jobs = [
        Job(id=1, work=work, tokens=RaggedTokens.of(texts)),
        Job(id=2, work=work, tokens=RaggedTokens.of(texts[7:])),
    ]
    expected = run(engine, jobs)
    with cut_texts(engine, chunk):
        for seed in range(2):
            assert_alike(run_in_steps(engine, jobs, seed), expected, dtype)


CAUSAL = ("tiny-qwen2", "tiny-qwen3", "tiny-llama", "tiny-mistral", "tiny-gemma2", "tiny-gemma3")
CELLS = [cell for cell in parity.TABLE if cell[0] in CAUSAL]
QUICK = {("tiny-qwen3", "vectors"), ("tiny-qwen3", "yes-no"), ("tiny-mistral", "vectors"), ("tiny-gemma2", "vectors")}
QUICK |= {("tiny-qwen3", "labels"), ("tiny-gemma3", "vectors")}


@pytest.mark.parametrize(
    "chunk", [16, pytest.param(64, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("name", "output"), [cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.slow) for cell in CELLS]
)
def test_texts_in_pieces_give_what_transformers_gives(tables: Tables, name: str, output: str, chunk: int) -> None:
    engine, texts = tables.engine(name, output, "float32"), Texts.of(name, output, "float32")
    with cut_texts(engine, chunk):
        for seed in range(3):
            found = parity.ours(engine, output, texts, partial(run_in_steps, seed=seed))
            assert_parity(found, Expected.of(tables, name, output, "float32"), "float32")
