"""Every text architecture of the installed transformers is served as sentence-transformers would, or refused.

The families that issue reports name are tried at every run, all of them by `make test-slow`.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tiny import CPU, DENSE, dense_rows, raw, run

from gpu_worker import census
from gpu_worker.engine import ModelEngine
from gpu_worker.models import miniature
from gpu_worker.models.loading import load
from gpu_worker.models.quiet import quiet
from shared.jobs import Job
from shared.ragged import RaggedTokens

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
NAMED = (
    "bloom", "deberta", "falcon", "gpt_oss", "jamba", "longformer", "mamba", "megatron-bert", "mobilebert", "mpt",
    "nemotron", "rembert", "roformer", "stablelm", "xlnet",
)  # fmt: skip
"""Those that once were refused for a reason that was ours."""
SPECIAL = ("[PAD]", "[MASK]", "[SEP]", "[CLS]", "[UNK]")
TOLERANCE = 3e-5
"""Of the largest number of a vector."""
NOT_MADE = {"markuplm"}
"""Those of which sentence-transformers wants more files than a text model has."""


def sentences(count: int) -> list[str]:
    """1 to 200 words, up to two of which are special tokens."""
    generator = random.Random(5)
    found = []
    for _ in range(count):
        words = [f"w{generator.randint(0, 850)}" for _ in range(generator.randint(1, 200))]
        for _ in range(generator.randint(0, 2)):
            words[generator.randrange(len(words))] = generator.choice(SPECIAL)
        found.append(" ".join(words))
    return found


def compare(kind: str, folder: Path, count: int) -> None:
    """Our vectors in steps of 30 texts, theirs text by text.

    A model that chooses among near ties (experts, keys by an index) may choose otherwise in the last bit: one text in a
    hundred may lie within a cosine of 0.999 instead.
    """
    with quiet():
        miniature.write(folder, kind)
        theirs = SentenceTransformer(str(folder), device="cpu")
    engine = ModelEngine(load(str(folder), CPU))
    texts = sentences(count)
    expected = theirs.encode(texts, batch_size=1, show_progress_bar=False)
    ids = theirs.tokenizer(texts, truncation=True, max_length=engine.model.max_tokens)["input_ids"]
    found = dense_rows(run(engine, [Job(id=1, work=raw(DENSE), tokens=RaggedTokens.of(ids))], width=30)[0])
    wrong = np.abs(found - expected).max(axis=1) > TOLERANCE * max(1.0, np.abs(expected).max())
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert wrong.sum() <= count // 100
    assert ((found * expected).sum(axis=1) / lengths).min() >= 0.999


def told(kind: str) -> str:
    """How docs/models.md says it is served."""
    cells = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind} |")).split("|")
    return cells[3].strip()


@pytest.mark.parametrize("kind", NAMED)
def test_a_family_that_was_refused_is_served_right(kind: str, tmp_path: Path) -> None:
    """By equal length, since none of them runs packed."""
    assert told(kind) == census.EQUAL_LENGTH
    compare(kind, tmp_path, count=20)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", list(miniature.model_types()))
def test_no_architecture_is_served_wrong(kind: str, tmp_path: Path) -> None:
    """200 mixed texts of each; and the page tells its outcome."""
    outcome = census.outcome_of(kind)
    assert outcome.way == told(kind)
    if outcome.way != census.REFUSED and kind not in NOT_MADE:
        compare(kind, tmp_path, count=200)


def test_the_page_counts_what_it_lists() -> None:
    """And T5's encoders run packed."""
    text = PAGE.read_text()
    for way in (census.PACKED, census.EQUAL_LENGTH, census.REFUSED):
        assert f"**{way}** ({text.count(f' | {way} | ')})" in text
    assert {told(kind) for kind in ("t5", "mt5", "umt5", "bert", "xlm-roberta", "qwen3", "modernbert")} == {"packed"}
