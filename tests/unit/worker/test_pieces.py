"""Long texts in pieces: what comes out is what transformers gives for the whole text, whatever the steps were."""

from functools import partial

import pytest

from gpu_worker.engine.jobs.units import PieceLimits
from support import parity
from support.in_pieces import run_in_steps
from support.parity import Expected, Tables, Texts, assert_parity

pytestmark = pytest.mark.usefixtures("one_thread")
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
    assert not engine.model.whole_texts
    engine.cut_texts(PieceLimits(longest=chunk))
    try:
        for seed in range(3):
            found = parity.ours(engine, output, texts, partial(run_in_steps, seed=seed))
            assert_parity(found, Expected.of(tables, name, output, "float32"), "float32")
    finally:
        engine.cut_texts(PieceLimits())
