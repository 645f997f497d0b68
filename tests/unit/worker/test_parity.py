"""The parity table: every family and every output, packed and mixed in one step, against transformers one by one.

And against itself: a text's numbers do not depend on its batch mates.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from support import parity
from support.flaws import Flawed, counted_on
from support.parity import Expected, Tables, Texts, assert_parity
from support.tiny import CPU, random_ids

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
BESIDE_VECTORS = {
    "tiny-bert": {"splade", "cross-encoder", "token labels"},
    "tiny-deberta-v2": {"splade"},
    "tiny-modernbert": {"token labels", "cross-encoder"},
    "tiny-qwen3": {"labels", "yes-no"},
}
"""Families that together have every output, most of them twice; of all others `make test` runs vectors, and
`make test-slow` runs everything."""
BY_OTHERS = {f"tiny-{name}-bidirectional" for name in ("qwen2", "qwen3", "llama")}
BY_OTHERS |= {f"tiny-{name}" for name in ("xlm-roberta", "distilbert", "qwen2", "t5", "mt5", "umt5")}
"""Decoders without a causal mask, of which `make test` runs Mistral's; what differs from RoBERTa, BERT and Llama by
little but its name; and what test_relative.py compares."""


def _always(name: str, output: str) -> bool:
    return name not in BY_OTHERS and output in {"vectors", *BESIDE_VECTORS.get(name, ())}


CELLS = [cell if _always(*cell) else pytest.param(*cell, marks=pytest.mark.slow) for cell in parity.TABLE]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "output"), CELLS)
def test_every_output_of_every_family_is_that_of_transformers(
    tables: Tables, name: str, output: str, dtype: str
) -> None:
    """From the files to the numbers, through the gate."""
    engine = tables.engine(name, output, dtype)
    assert not engine.model.encoder.unpacked_reason
    ours = parity.ours(engine, output, Texts.of(name, output, dtype))
    assert_parity(ours, Expected.of(tables, name, output, dtype), dtype)


def test_the_table_has_every_family_and_every_output() -> None:
    """A renamed class or mapping of transformers would empty it in silence."""
    assert {name for name, output in parity.TABLE if output == "vectors"} == set(parity.TINY)
    assert {(name, output) for name, outputs in BESIDE_VECTORS.items() for output in outputs} <= set(parity.TABLE)


FLAWS = [
    ("tiny-bert", "splade", "mixes sequences"),
    ("tiny-qwen3", "yes-no", "flips causality"),
    ("tiny-mistral", "vectors", "ignores the window"),
    ("tiny-modernbert", "token labels", "ignores the window"),
    ("tiny-bert", "cross-encoder", "positions not restarted"),
    ("tiny-bert", "labels", "segments ignored"),
]


@pytest.mark.parametrize(("name", "output", "flaw"), FLAWS)
def test_the_table_sees_every_mistake(
    tables: Tables, name: str, output: str, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls: the same assertion, after the gate was passed."""
    with monkeypatch.context() as patch:  # with the layers of the class, which take another attention
        patch.setattr("gpu_worker.model.native.native_model.FAMILIES", {})
        model = load(str(tables.folder(name, output)), CPU, LoadOptions(max_tokens=max(parity.LONG)))
    if flaw == "positions not restarted":
        honest = PackedEncoder.__call__
        monkeypatch.setattr(PackedEncoder, "__call__", lambda encoder, batch: honest(encoder, counted_on(batch)))
    types = None if flaw == "segments ignored" else model.encoder.token_types
    encoder = PackedEncoder(model.encoder.model, Flawed(flaw), model.encoder.uncounted, types)
    wrong = parity.ours(ModelEngine(replace(model, encoder=encoder)), output, Texts.of(name, output, "float32"))
    with pytest.raises(AssertionError, match="times"):
        assert_parity(wrong, Expected.of(tables, name, output, "float32"), "float32")


LENGTH = 37
TEXT = random_ids([LENGTH], seed=1)[0]
MATES = {
    "shorter": random_ids(np.random.default_rng(2).integers(1, LENGTH, 31).tolist(), seed=2),
    "as long": random_ids([LENGTH] * 31, seed=3),
    "longer": random_ids(np.random.default_rng(4).integers(LENGTH + 1, 120, 31).tolist(), seed=4),
}
"""A step is sorted by length, so the text lies behind, among, or in front of these."""


def numbers(engine: ModelEngine, output: str, texts: Sequence[Sequence[int]], place: int) -> Tensor:
    """Of the text at `place`; the others travel in the same step, in jobs of their own and in the text's."""
    cell = Texts(ids=[list(text) for text in texts], seconds=[0] * len(texts))
    return parity.ours(engine, output, cell)[place]


LOGITS_NEAR = 4e-6
"""Logits may be differences of larger numbers: with SSE alone they have been 1.6e-6 apart."""


def scaled(numbers: Tensor, output: str) -> Tensor:
    """Vectors of unit length; logits in parts of what they are."""
    if output in ("vectors", "splade"):
        return F.normalize(numbers.view(-1, 64 if output == "vectors" else len(numbers)), dim=1)
    return numbers / numbers.abs().clamp(min=1)


@pytest.mark.parametrize(("name", "output"), CELLS)
def test_numbers_are_the_same_whatever_their_batch_mates(tables: Tables, name: str, output: str) -> None:
    """Alone, with one other, with 31 others; first and last: vectors within 1e-6, on whatever processor."""
    near = 1e-6 if output in ("vectors", "splade") else LOGITS_NEAR
    engine = tables.engine(name, output, "float32")
    alone = scaled(numbers(engine, output, [TEXT], 0), output)
    one, equal = MATES["as long"][:1], MATES["as long"]
    # Where lengths differ, the step's order is theirs, wherever the text stood.
    for mates, place in ((one, 0), (one, 1), (equal, 0), (equal, 31), (MATES["shorter"], 0), (MATES["longer"], 31)):
        among = numbers(engine, output, [*mates[:place], TEXT, *mates[place:]], place)
        assert (scaled(among, output) - alone).abs().max() <= near
