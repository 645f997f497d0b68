"""Jobs of every kind give in pieces what they give whole, in any order of steps and among any others.

`test_parity.py` compares whole texts with transformers, `test_pieces_and_memory.py` texts in pieces.
"""

import pytest

from shared.jobs import Classify, Job, RaggedTokens
from support.every_kind import assert_alike, vector_engine, vector_jobs
from support.in_pieces import cut_texts, run_in_steps
from support.parity import Tables
from support.tiny import random_ids, run

pytestmark = pytest.mark.usefixtures("one_thread")
CHUNK, MARK = 16, 7
TEXTS = random_ids([1, 15, 16, 17, 33, 49, 5, 64, 130, 3])
for text, place in ((1, 14), (4, 15), (4, 16), (8, 0), (8, 129)):  # the last tokens of pieces, and the first
    TEXTS[text][place] = MARK
QUERIES, DOCUMENTS = random_ids([3, 50, 17], seed=1), random_ids([40, 2, 129, 16, 31], seed=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "splade"),
    [
        ("tiny-qwen3", True),
        pytest.param("tiny-qwen3", False, marks=pytest.mark.slow),
        ("tiny-mistral", False),
        ("tiny-gemma2", True),
        pytest.param("tiny-gemma3", True, marks=pytest.mark.slow),
        pytest.param("tiny-llama", False, marks=pytest.mark.slow),
    ],
)
def test_vectors_and_scores_in_pieces(name: str, splade: bool, dtype: str) -> None:
    """Every pooling, token rows, both kinds of sparse weights; all methods of scoring, as matrices and as pairs."""
    engine, jobs = vector_engine(name, dtype, splade), vector_jobs(TEXTS, QUERIES, DOCUMENTS)
    expected = run(engine, jobs)
    with cut_texts(engine, longest=CHUNK):
        assert any(engine.open(job).room for job in jobs)
        for seed in range(2):
            assert_alike(run_in_steps(engine, jobs, seed), expected, dtype)


CLASSIFYING = [
    ("labels", Classify()),
    ("token labels", Classify(tokens=True)),
    ("token labels", Classify(tokens=True, token_id=MARK)),
    ("yes-no", Classify()),
]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("output", "work"), CLASSIFYING, ids=["texts", "tokens", "one token id", "yes or no"])
def test_logits_in_pieces(tables: Tables, output: str, work: Classify, dtype: str) -> None:
    """Of texts, of all tokens, of the tokens with one id, and of rerankers that answer yes or no."""
    engine = tables.engine("tiny-qwen3", output, dtype)
    jobs = [Job(id=number, work=work, tokens=RaggedTokens.of(texts)) for number, texts in enumerate((TEXTS, TEXTS[7:]))]
    expected = run(engine, jobs)
    with cut_texts(engine, longest=CHUNK):
        for seed in range(2):
            assert_alike(run_in_steps(engine, jobs, seed), expected, dtype)
