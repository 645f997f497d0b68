"""Products that are made together: the same numbers, fewer products, and layers that are compiled as before."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.model import execution
from gpu_worker.model.encoder.encoder import uncounted_id_of
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.source import LoadOptions, open_source
from gpu_worker.model.tune.graphs import compiled_run
from gpu_worker.model.tune.merged import MergedLinear, merge, saved_products, separate
from gpu_worker.ragged.batch import RaggedBatch
from support import varlen_twin
from support.graphs import reference_of
from support.random_models import random_model
from support.tiny import CPU

LAYERS = 3
FEWER = {"tiny-bert": 2, "tiny-distilbert": 2, "tiny-qwen2": 3, "tiny-qwen3": 3, "tiny-gemma3": 3, "tiny-modernbert": 0}
"""Products of a layer that are saved: two of queries, keys and values, one of a gate."""


def encoder_of(name: str) -> PackedEncoder:
    attention.register()
    varlen_twin.install()
    base = open_source(random_model(name), CPU, LoadOptions()).model.base_model
    execution.make_packed(base)
    return PackedEncoder(base, Varlen(), uncounted_id_of(base))


def batch(encoder: PackedEncoder, *lengths: int) -> RaggedBatch:
    generator = np.random.default_rng(sum(lengths))
    texts = [generator.integers(10, 900, length, dtype=np.int32) for length in lengths]
    return RaggedBatch.pack(texts, encoder.device, encoder.uncounted)


@pytest.mark.parametrize("name", FEWER)
@torch.inference_mode()
def test_the_same_numbers_by_fewer_products(name: str) -> None:
    encoder = encoder_of(name)
    batches = [batch(encoder, 3, 40, 7), batch(encoder, 12)]
    expected = [encoder(each) for each in batches]
    weights = {key: value.clone() for key, value in encoder.model.state_dict().items()}
    merge(encoder.model)
    assert saved_products(encoder.model) == FEWER[name] * LAYERS
    for each, wanted in zip(batches, expected, strict=True):
        assert torch.allclose(encoder(each), wanted, atol=2e-5)
    found = encoder.model.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[key], value) for key, value in weights.items())


@torch.inference_mode()
def test_what_was_merged_can_be_taken_apart() -> None:
    """The layers are as they were, with the same weights and bits."""
    encoder = encoder_of("tiny-qwen2")
    known = batch(encoder, 3, 40, 7)
    expected = encoder(known)
    weights = {key: value.clone() for key, value in encoder.model.state_dict().items()}
    merge(encoder.model)
    separate(encoder.model)
    assert saved_products(encoder.model) == 0
    assert {type(each) for each in encoder.model.modules() if isinstance(each, nn.Linear)} == {nn.Linear}
    assert torch.equal(encoder(known), expected)
    found = encoder.model.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[key], value) for key, value in weights.items())


@pytest.mark.parametrize("right", [True, False])
def test_the_gate_decides_whether_products_are_merged(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model does not run by them as by its own, its layers serve as they are, and the log says so."""
    reference, encoder = reference_of("tiny-qwen3", positions=64, limit=64)
    if not right:
        monkeypatch.setattr(MergedLinear, "forward", lambda layer, states: 2 * F.linear(states, layer.weight))
    monkeypatch.setattr(execution.attention_choice, "choose", lambda *_, **__: Varlen())
    placement = Placement(device=torch.device("cuda"), dtype=torch.float32)
    base = encoder.model
    mode = execution.choose_mode(
        execution.Untuned(base=base, heads=Heads(), reference=reference, placement=placement, uncounted=None)
    )
    assert isinstance(mode.encoder, PackedEncoder)
    assert saved_products(encoder.model) == (FEWER["tiny-qwen3"] * LAYERS if right else 0)
    merged = "9 products of a step are made together with others"
    told = merged if right else "no merged products: the model does not run by them as by its own"
    assert mode.findings == (told,)


def test_compiled_layers_make_one_product_of_a_group() -> None:
    """One graph for all layers; it has four products, not seven, and leaves nothing behind."""
    encoder = encoder_of("tiny-qwen3")
    merge(encoder.model)
    products: list[int] = []

    def counted(module: Any, _: Any) -> Any:
        products.append(sum("mm" in str(node.target) for node in module.graph.nodes))
        return module.forward

    torch.compiler.reset()
    compiled = compiled_run(encoder, aot_autograd(fw_compiler=counted))
    batches = [batch(encoder, 3, 40, 7), batch(encoder, 12, 5)]
    with torch.inference_mode():
        for each in batches:
            assert torch.allclose(compiled(each), encoder(each), atol=2e-5)
    assert products == [4]
    merged = [each for each in encoder.model.modules() if isinstance(each, MergedLinear)]
    assert len(merged) == 5 * LAYERS
    assert len({id(each._last) for each in merged}) == 1
    assert (merged[0]._last.columns, merged[0]._last.states, merged[0]._last.waiting) == (None, None, 0)
    torch.compiler.reset()


def test_a_step_that_failed_leaves_one_product_at_most() -> None:
    """The next layer that is called drops it before it makes its own, and the numbers are right."""
    encoder = encoder_of("tiny-qwen3")
    merge(encoder.model)
    known = batch(encoder, 3, 40, 7)
    layers = encoder.model.layers
    with torch.inference_mode():
        expected = encoder(known)
        handle = layers[2].mlp.act_fn.register_forward_hook(lambda *_: 1 / 0)  # between a gate and what it opens
        with pytest.raises(ZeroDivisionError):
            encoder(known)
        handle.remove()
        held = layers[2].mlp.gate_proj._last
        assert held.product is layers[2].mlp.gate_proj.product
        assert torch.equal(encoder(known), expected)
    assert held.columns is None


def test_other_states_are_multiplied_by_themselves() -> None:
    """Whoever calls the layers with different states, or one of them alone, gets what is right."""

    class Crossing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = nn.Linear(8, 6), nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, asking: Tensor, asked: Tensor) -> list[Tensor]:
            return [self.k_proj(asked), self.q_proj(asking), self.v_proj(asked), self.k_proj(asked)]

    model = Crossing()
    one, other = torch.randn(2, 5, 8)
    with torch.inference_mode():
        expected = model(one, other)
        merge(model)
        assert saved_products(model) == 2
        for ours, theirs in zip(model(one, other), expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)
