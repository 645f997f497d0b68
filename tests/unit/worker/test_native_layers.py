"""Layers that run whole by the processor's kernels equal PyTorch's, with the same bits alone and among others; what is
made otherwise stays as it is."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.cpu import library
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune import native_layers
from gpu_worker.model.tune.native_layers import NativeLayer, PackedLinear, post_norm_layers
from gpu_worker.ragged.batch import RaggedBatch
from support.native import no_kernels

LIBRARY = library.load()
pytestmark = pytest.mark.skipif(bool(LIBRARY.missing), reason=f"the processor's kernels: {LIBRARY.missing}")
FORMATS = sorted(LIBRARY.formats, key=str)
CPU = Placement.choose("cpu", "float32")
ACTIVATIONS: list[tuple[int, nn.Module]] = [
    (0, nn.Identity()),
    (1, nn.GELU()),
    (2, nn.GELU("tanh")),
    (3, nn.ReLU()),
    (4, nn.SiLU()),
]
ROWS, WIDTHS = st.integers(1, 200), st.sampled_from([32, 64, 96, 384])


def close(ours: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Within the format's rounding of results of the size of `expected`."""
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    return bool((ours.double() - expected).abs().max() < tolerance * max(1.0, float(expected.abs().max())))


@settings(deadline=None, max_examples=60)
@given(ROWS, WIDTHS, st.lists(WIDTHS, min_size=1, max_size=3), st.sampled_from(ACTIVATIONS), st.sampled_from(FORMATS))
def test_linear_layers_equal_pytorchs(
    rows: int, inputs: int, outputs: list[int], activation: tuple[int, nn.Module], dtype: torch.dtype
) -> None:
    """Any number of rows, one or several layers on the same input, each activation; without a bias too."""
    torch.manual_seed(rows)
    number, function = activation
    linears = [nn.Linear(inputs, width, bias=place != 1).to(dtype) for place, width in enumerate(outputs)]
    x = torch.randn(rows, inputs).to(dtype) * 2
    joined = PackedLinear(*linears)
    with torch.inference_mode():
        ours = torch.ops.selvage.linear(x, joined.weight, joined.bias, number)
        expected = function(torch.cat([linear.double()(x.double()) for linear in linears], dim=1))
        alone = torch.ops.selvage.linear(x[rows // 2 :][:1].contiguous(), joined.weight, joined.bias, number)
    assert close(ours, expected, dtype)
    assert torch.equal(alone[0], ours[rows // 2])


@settings(deadline=None, max_examples=60)
@given(ROWS, WIDTHS, WIDTHS, WIDTHS, st.sampled_from(ACTIVATIONS), st.sampled_from(FORMATS))
def test_what_follows_attention_equals_pytorch(
    rows: int, width: int, attended: int, inner: int, activation: tuple[int, nn.Module], dtype: torch.dtype
) -> None:
    """Output, residual, normalisation and feed-forward, against the same written out in float64."""
    torch.manual_seed(rows)
    number, function = activation
    output, up, down = (nn.Linear(*sizes).to(dtype) for sizes in ((attended, width), (width, inner), (inner, width)))
    norms = [nn.LayerNorm(width, eps=1e-5) for _ in range(2)]
    for norm in norms:
        nn.init.normal_(norm.weight, 1.0)
        nn.init.normal_(norm.bias)
    x, states = torch.randn(rows, width).to(dtype), torch.randn(rows, attended).to(dtype)
    packed = [PackedLinear(linear) for linear in (output, up, down)]
    parts = [
        [linear.weight for linear in packed],
        [linear.bias for linear in packed],
        [parameter.detach() for norm in norms for parameter in (norm.weight, norm.bias)],
    ]
    with torch.inference_mode():
        ours = torch.ops.selvage.feed_forward(x, states, *parts, 1e-5, number)
        middle = norms[0].double()(x.double() + output.double()(states.double()))
        expected = norms[1].double()(middle + down.double()(function(up.double()(middle))))
        place = rows // 2
        alone = torch.ops.selvage.feed_forward(x[place : place + 1], states[place : place + 1], *parts, 1e-5, number)
    assert close(ours, expected, dtype)
    assert torch.equal(alone[0], ours[place])


def rows_of(model: Model) -> Tensor:
    """Hidden states of a short text, a longer one and a long one, in one batch."""
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (3, 40, 300)]
    batch = RaggedBatch.pack(texts, torch.device("cpu"), model.encoder.uncounted, types=model.encoder.token_types)
    with torch.inference_mode():
        return model.encoder(batch).float()


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-roberta"])
def test_a_model_with_native_layers_gives_what_it_gave(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card says how its layers run; without kernels it says so too."""
    model = load(f"random:{name}", CPU)
    assert model.linear.startswith(f"native ({LIBRARY.instructions})")
    assert any("layers run whole by the processor's kernels" in line for line in model.findings)
    assert any(isinstance(module, NativeLayer) for module in model.encoder.model.modules())
    no_kernels(monkeypatch)
    usual = load(f"random:{name}", CPU)
    assert "native" not in usual.linear
    assert usual.fingerprint == model.fingerprint
    assert torch.allclose(rows_of(model), rows_of(usual), atol=1e-5)


def test_layers_that_err_serve_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate compares; then the layers run as they were written, and the log says so."""
    honest = NativeLayer.forward
    monkeypatch.setattr(NativeLayer, "forward", lambda *arguments, **options: honest(*arguments, **options) * 1.01)
    model = load("random:tiny-bert", CPU)
    assert "native" not in model.linear
    assert not any(isinstance(module, NativeLayer) for module in model.encoder.model.modules())
    assert any(line.startswith(f"no native ({LIBRARY.instructions}) layers: ") for line in model.findings)


class Pairs(nn.Module):
    """An activation that returns its scale as well, as I-BERT's do."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return nn.functional.gelu(x), None


def layer(**changes: Any) -> nn.ModuleList:
    """One post-normalised layer as BERT's modules name its parts, with changed parts."""
    width, inner = 64, 128
    parts = nn.Module()
    parts.attention = nn.Module()
    parts.attention.self = nn.Module()
    parts.attention.self.num_attention_heads = 4
    for name in ("query", "key", "value"):
        setattr(parts.attention.self, name, nn.Linear(width, width))
    parts.attention.output, parts.intermediate, parts.output = nn.Module(), nn.Module(), nn.Module()
    parts.attention.output.dense, parts.attention.output.LayerNorm = nn.Linear(width, width), nn.LayerNorm(width)
    parts.intermediate.dense, parts.intermediate.intermediate_act_fn = nn.Linear(width, inner), nn.GELU()
    parts.output.dense, parts.output.LayerNorm = nn.Linear(inner, width), nn.LayerNorm(width)
    for path, value in changes.items():
        owner, _, name = path.rpartition("__")
        setattr(parts.get_submodule(owner.replace("__", ".")) if owner else parts, name, value)
    return nn.ModuleList([parts])


@pytest.mark.parametrize(
    "changes",
    [
        {"crossattention": nn.Linear(64, 64)},
        {"is_decoder": True},
        {"attention__output__LayerNorm": nn.RMSNorm(64)},
        {"output__LayerNorm": nn.LayerNorm(64, eps=1e-3)},
        {"output__LayerNorm": nn.LayerNorm(64, bias=False)},
        {"intermediate__intermediate_act_fn": nn.Mish()},
        {"intermediate__intermediate_act_fn": Pairs()},
        {"attention__self__key": nn.Linear(64, 32)},
        {"intermediate__dense": nn.Linear(64, 100), "output__dense": nn.Linear(100, 64)},
    ],
)
def test_layers_made_otherwise_are_left_alone(changes: dict[str, Any]) -> None:
    """More parts, other normalisations, an unknown activation, sizes that the kernels do not take."""
    assert len([*post_norm_layers(nn.Sequential(layer()))]) == 1
    assert not [*post_norm_layers(nn.Sequential(layer(**changes)))]


def test_formats_that_the_kernels_have_not_are_left_alone() -> None:
    """float16 has no products here."""
    assert native_layers.install_layers(nn.Sequential(layer()).half(), LIBRARY) == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((torch.zeros(3, 31), torch.zeros(1, 32, 32, 1), torch.zeros(32), 0), "x must be"),
        ((torch.zeros(3, 32), torch.zeros(1, 32, 32, 1), torch.zeros(31), 0), "bias must have"),
        ((torch.zeros(3, 32), torch.zeros(32, 32), torch.zeros(32), 0), "not packed"),
        ((torch.zeros(3, 32), torch.zeros(1, 32, 32, 1), torch.zeros(32), 9), "no activation 9"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason):
        torch.ops.selvage.linear(*arguments)
