"""The parity table: every family and every output, packed and mixed in one step, against transformers one by one."""

from dataclasses import replace

import parity
import pytest
from flaws import Flawed, counted_on
from parity import Expected, Tables, Texts, assert_parity

from gpu_worker.engine import ModelEngine
from gpu_worker.model.trunk import PackedTrunk

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "output"), parity.TABLE)
def test_every_output_of_every_family_is_that_of_transformers(
    tables: Tables, name: str, output: str, dtype: str
) -> None:
    """From the files to the numbers."""
    found = parity.ours(tables.engine(name, output, dtype), output, Texts.of(name, output, dtype))
    assert_parity(found, Expected.of(tables, name, output, dtype), dtype)


def test_the_table_covers_what_transformers_has() -> None:
    """So that a renamed class or mapping cannot empty it in silence."""
    outputs = [{name for name, output in parity.TABLE if output == wanted} for wanted in parity.OUTPUTS]
    vectors, splade, cross, labels, tokens, yes_no = outputs
    assert vectors == set(parity.TINY)
    assert {f"tiny-{name}" for name in ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet")} <= splade
    assert {"tiny-deberta-v2", "tiny-modernbert"} <= splade
    assert {f"tiny-{name}" for name in (*parity.DECODERS, "bert", "deberta-v2", "mpnet", "modernbert")} <= cross
    assert labels == set(parity.SEVERAL_LABELS)
    assert {"tiny-bert", "tiny-roberta", "tiny-deberta-v2", "tiny-qwen3"} <= tokens
    assert yes_no == {f"tiny-{name}" for name in parity.DECODERS}


CONTROLS = [
    ("tiny-bert", "vectors", "mixes sequences"),
    ("tiny-bert", "splade", "mixes sequences"),
    ("tiny-bert", "cross-encoder", "mixes sequences"),
    ("tiny-bert", "token labels", "mixes sequences"),
    ("tiny-bert", "labels", "flips causality"),
    ("tiny-qwen3", "vectors", "flips causality"),
    ("tiny-qwen3", "yes-no", "flips causality"),
    ("tiny-qwen3", "yes-no", "mixes sequences"),
    ("tiny-mistral", "vectors", "ignores the window"),
    ("tiny-mistral", "yes-no", "ignores the window"),
    ("tiny-modernbert", "splade", "ignores the window"),
    ("tiny-modernbert", "token labels", "ignores the window"),
    ("tiny-bert", "vectors", "positions not restarted"),
    ("tiny-bert", "cross-encoder", "positions not restarted"),
    ("tiny-roberta", "splade", "positions not restarted"),
    ("tiny-bert", "labels", "segments ignored"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "output", "flaw"), CONTROLS)
def test_the_table_sees_every_mistake(
    tables: Tables, name: str, output: str, flaw: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls: the same assertion, after the gate was passed."""
    expected = Expected.of(tables, name, output, dtype)
    model = tables.engine(name, output, dtype).model
    if flaw == "positions not restarted":
        honest = PackedTrunk.__call__
        monkeypatch.setattr(PackedTrunk, "__call__", lambda trunk, batch: honest(trunk, counted_on(batch)))
    trunk = PackedTrunk(model.trunk.model, Flawed(flaw), model.trunk.uncounted, flaw != "segments ignored")
    found = parity.ours(ModelEngine(replace(model, trunk=trunk)), output, Texts.of(name, output, dtype))
    with pytest.raises(AssertionError, match="times"):
        assert_parity(found, expected, dtype)
