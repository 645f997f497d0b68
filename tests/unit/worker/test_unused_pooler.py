"""The encoder's own pooler: left out where no output is made of it, kept by the heads that read it."""

import pytest
from torch import nn

from gpu_worker.model.heads.building import UnusedPooler
from gpu_worker.model.heads.heads import EncoderStandIn
from gpu_worker.model.loading import load
from gpu_worker.model.native.families import FAMILIES
from support.parity import Tables
from support.tiny import CPU

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("output", "poolers"), [("vectors", 0), ("cross-encoder", 1)])
def test_no_step_runs_a_pooler_that_nobody_reads(
    tables: Tables, output: str, poolers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gates have passed: hidden states and logits are those of the class with its pooler."""
    monkeypatch.delitem(FAMILIES, "bert")  # the kernels run no pooler in any case
    model = load(str(tables.folder("tiny-bert", output)), CPU)
    assert isinstance(model.encoder.model.pooler, UnusedPooler)
    modules = [module for head in model.heads.modules() for module in head.modules()]
    stand_ins = [module for module in modules if isinstance(module, EncoderStandIn)]
    assert [type(stand_in.pooler).__name__ for stand_in in stand_ins] == ["BertPooler"] * poolers
    assert all(isinstance(stand_in.pooler, nn.Module) for stand_in in stand_ins)
