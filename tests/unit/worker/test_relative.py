"""Relative position terms are the model's own, by distance, and nothing grows with the square of a step."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.attention.relative import deberta
from gpu_worker.model.encoder.encoder import uncounted_id_of
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.tune.linear import PrepackedLinear, pack
from gpu_worker.ragged.batch import RaggedBatch
from harness.random_models import shapes, synthetic
from shared.errors import ModelRefused
from support.onednn import needs_packed_layers
from support.tiny import referee

CPU = torch.device("cpu")
FAMILIES = ["tiny-mpnet", "tiny-deberta-v2"]
DEBERTA = shapes.TINY | {"relative_attention": True, "pos_att_type": "c2p|p2c"}
VARIANTS: dict[str, dict[str, Any]] = {
    "no shared projection, no buckets, absolute positions": {"position_biased_input": True, "type_vocab_size": 2},
    "distances cut": {"max_relative_positions": 12},
    "c2p only": {"pos_att_type": "c2p", "position_buckets": 16},
    "p2c only": {"pos_att_type": ["p2c"], "position_buckets": 16, "share_att_key": True},
    "logarithm cut": {"position_buckets": 8, "max_relative_positions": 30, "norm_rel_ebd": "layer_norm"},
    "no term": {"pos_att_type": "", "share_att_key": True},
    "no relative attention": {"relative_attention": False},
}


def built(kind: str, values: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    attention.register()
    return synthetic.build(AutoConfig.for_model(kind, **values), "encoder", Placement(device=CPU, dtype=dtype)).eval()


EACH_WAY = [OneByOne(), EqualRuns()]
GATES = [
    pytest.param(variant, dtype, packed, marks=pytest.mark.slow if (one + other) % every else ())
    for one, variant in enumerate(VARIANTS)
    for dtype, every in ((torch.float32, 2), (torch.bfloat16, 5))
    for other, packed in enumerate(EACH_WAY)
]
"""Every variant by every other way in float32, by one or two in bfloat16; all by `make test-slow`."""


@pytest.mark.parametrize(("variant", "dtype", "packed"), GATES, ids=lambda each: getattr(each, "name", str(each)))
def test_every_deberta_passes_its_gate(variant: str, dtype: torch.dtype, packed: attention.PackedAttention) -> None:
    """Each combination of terms, buckets and projections; the probe is longer than any cut."""
    model = built("deberta-v2", DEBERTA | VARIANTS[variant], dtype)
    reference = referee(model)
    reference.check(PackedEncoder(model, packed))


def test_a_convolution_over_tokens_is_refused() -> None:
    """It would reach over the borders of sequences; the first XL checkpoints have one."""
    model = built("deberta-v2", DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"})
    with pytest.raises(ModelRefused, match="conv_kernel_size = 3"):
        referee(model)


@given(st.integers(4, 600), st.integers(1, 300), st.integers(0, 500))
def test_buckets_are_transformers_buckets(buckets: int, distance: int, further: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    furthest = buckets // 2 + 2 + further
    distances = torch.arange(-distance, distance + 1)
    expected = make_log_bucket_position(distances, buckets, furthest).long()
    assert torch.equal(deberta.bucket(distances, buckets, furthest), expected)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(0, 4), st.integers(1, 3), st.sampled_from(["c2p", "p2c", "both"]))
def test_disentangled_terms_equal_their_definition(length: int, further: int, count: int, kind: str) -> None:
    """arXiv:2006.03654, equation 4, pair by pair; the table may be that of a longer text."""
    torch.manual_seed(length)
    longest, heads, width = length + further, 2, 3
    keys, queries = (torch.randn(heads, 2 * longest - 1, width) for _ in range(2))
    query, key = (torch.randn(count * length, heads, width).transpose(0, 1) for _ in range(2))
    query, key = (each.view(heads, count, length, width).transpose(0, 1) for each in (query, key))
    expected = torch.zeros(count, heads, length, length)
    for i in range(length):
        for j in range(length):
            if kind != "p2c":
                expected[:, :, i, j] += (query[:, :, i] * keys[:, longest - 1 + j - i]).sum(-1)
            if kind != "c2p":
                expected[:, :, i, j] += (key[:, :, j] * queries[:, longest - 1 + i - j]).sum(-1)
    chosen = (None if kind == "p2c" else keys, None if kind == "c2p" else queries)
    assert torch.allclose(deberta.disentangled(*chosen, query, key), expected, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_runs_with_disentangled_terms_equal_one_by_one(lengths: list[int]) -> None:
    torch.manual_seed(0)
    batch = RaggedBatch.pack([np.ones(each, dtype=np.int32) for each in lengths], CPU)
    query, key, value = (torch.randn(batch.total, 2, 8).transpose(0, 1) for _ in range(3))
    keys, queries = (torch.randn(2, 2 * batch.longest - 1, 8) for _ in range(2))
    terms = AttentionTerms(scale=0.3, bias=lambda q, k: deberta.disentangled(keys, queries, q, k))
    expected = OneByOne()(query, key, value, batch, terms)
    assert torch.allclose(EqualRuns()(query, key, value, batch, terms), expected, atol=2e-6)


class Bound(TorchDispatchMode):
    """Fails on any tensor with more than so many numbers."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.largest = numbers, 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        output = function(*arguments, **(keywords or {}))
        for each in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(each, Tensor):
                self.largest = max(self.largest, each.numel())
                assert each.numel() <= self.numbers, f"{function} made {tuple(each.shape)}"
        return output


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_grows_with_the_square_of_a_step(name: str) -> None:
    """16,384 tokens of 512 texts: no tensor has a sixteenth of 16,384^2 numbers."""
    config, _ = synthetic.shape_of(name)
    kind, _, values = synthetic.SHAPES[name]
    model = built(kind, values | {"num_hidden_layers": 1})
    referee(model)
    encoder = PackedEncoder(model, EqualRuns(), uncounted_id_of(model))
    batch = RaggedBatch.pack([np.full(32, 7, dtype=np.int32)] * 512, CPU, encoder.uncounted)
    with torch.inference_mode(), Bound(batch.total**2 // 16) as bound:
        assert encoder(batch).shape == (16_384, config.hidden_size)
    assert bound.largest >= batch.total * config.hidden_size  # it saw the step at all


@pytest.mark.parametrize("name", FAMILIES)
def test_the_models_own_encoder_grows_so(name: str) -> None:
    """Negative control: at a quarter of the length, which memory bears."""
    model = built(name.removeprefix("tiny-"), synthetic.SHAPES[name][2] | {"max_position_embeddings": 5000})
    with torch.inference_mode(), pytest.raises(AssertionError, match="made"), Bound(4096**2 // 16):
        model(input_ids=torch.full((1, 4096), 7))


@needs_packed_layers
@pytest.mark.parametrize("name", FAMILIES)
def test_projections_of_the_attention_are_packed(name: str) -> None:
    """All linear layers of a layer run prepacked where the processor has that."""
    model = built(name.removeprefix("tiny-"), synthetic.SHAPES[name][2])
    referee(model)
    before = [module for module in model.encoder.modules() if isinstance(module, torch.nn.Linear)]
    assert pack(model)
    after = [module for module in model.encoder.modules() if isinstance(module, PrepackedLinear)]
    assert len(before) == len(after) == 6 * model.config.num_hidden_layers


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_a_step_leaves_nothing_behind(name: str) -> None:
    """The batch and its tables are let go, also where a layer fails."""
    model = built(name.removeprefix("tiny-"), synthetic.SHAPES[name][2])
    referee(model)
    step = model.encoder._state
    encoder = PackedEncoder(model, OneByOne(), uncounted_id_of(model))
    batch = RaggedBatch.pack([np.full(3, 7, dtype=np.int32)], CPU, encoder.uncounted)
    encoder(batch)
    assert step.call is step.by_distance is None
    model.encoder.layer[0].forward = None
    with pytest.raises(TypeError):
        encoder(batch)
    assert step.call is step.by_distance is None
