"""Layers that run whole by the processor's kernels equal PyTorch's, with the same bits alone and among others; what is
made otherwise stays as it is."""

import ctypes
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.maxsim.maxsim_kernels import Comparison, NativeMaxSim, Texts
from gpu_worker.model.loading import Model, load
from gpu_worker.model.native.native_layers import alternating
from gpu_worker.model.native.native_model import NativeEncoder
from gpu_worker.model.native.packed_linear import PackedLinear, QuantizedLinear
from gpu_worker.ragged.batch import RaggedBatch
from shared.vectors import Layout
from support.native import LIBRARY, needs_kernels, no_kernels
from support.random_models import random_model

pytestmark = needs_kernels
FORMATS = sorted(LIBRARY.formats, key=str)
CPU = Placement.choose("cpu", "float32")
ACTIVATIONS: list[tuple[int, nn.Module]] = [
    (0, nn.Identity()),
    (1, nn.GELU()),
    (2, nn.GELU("tanh")),
    (3, nn.ReLU()),
    (4, nn.SiLU()),
]
EPSILON = 1e-5
ROWS, WIDTHS, THREADS = st.integers(1, 600), st.sampled_from([32, 64, 96, 384]), st.integers(1, 4)
"""Rows in one block of a layer, and in several; numbers of a row; threads, which cut rows otherwise."""


@contextmanager
def in_threads(count: int) -> Iterator[None]:
    """Has PyTorch compute in so many threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def close(ours: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Within the format's rounding of results of the size of `expected`."""
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    return bool((ours.double() - expected).abs().max() < tolerance * max(1.0, float(expected.abs().max())))


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


def at_the_end_of_memory(x: Tensor) -> Tensor:
    """A copy behind which there is no memory: who reads on there ends the process."""
    page, size = mmap.PAGESIZE, x.numel() * x.element_size()
    last = -(-size // page) * page
    memory = mmap.mmap(-1, last + page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + last), ctypes.c_size_t(page), 0) == 0
    there = torch.frombuffer(memory, dtype=torch.uint8, offset=last - size, count=size).view(x.dtype).view(x.shape)
    return there.copy_(x)


@pytest.mark.parametrize("number_format", [*(str(dtype)[6:] for dtype in FORMATS), "int8"])
def test_products_read_nothing_behind_their_rows(number_format: str) -> None:
    """Rows, and vectors of MaxSim, that end where memory ends: tiles and vectors of a last part reach no further."""
    dtype = torch.float32 if number_format == "int8" else getattr(torch, number_format)
    plain = nn.Linear(64, 96).to(dtype)
    layer = QuantizedLinear(plain) if number_format == "int8" else PackedLinear(plain)
    packed, drawn = at_the_end_of_memory(layer.weight), torch.randn(70, 64).to(dtype)
    text = Texts.end_to_end(np.array([5]))
    with torch.inference_mode():
        expected = layer(drawn)
        for count in range(1, 71):
            rows = at_the_end_of_memory(drawn[:count])
            assert torch.equal(torch.ops.selvage.linear(rows, packed, layer.bias, 0), expected[:count])
            documents = Texts.end_to_end(np.array([count]))
            pair = [Comparison(queries=text, documents=documents, layout=Layout.PAIRS)]
            score = NativeMaxSim(LIBRARY)(drawn[:5], rows, pair)
            assert torch.equal(score, NativeMaxSim(LIBRARY)(drawn[:5], drawn[:count], pair))


EDGES = [float("-inf"), float("inf"), float("nan"), 3e38, -3e38, 0.0, -0.0, -88.0, -87.0, -104.0, 88.0, 1e-30, -1e-30]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("number", "function"), ACTIVATIONS[1:])
def test_activations_of_edge_values_equal_pytorchs(number: int, function: nn.Module, dtype: torch.dtype) -> None:
    """NaN where PyTorch has NaN, infinite where it is, and nothing overflows on the way. The error of GELU's series is
    absolute; where e^-|x| is smaller than normal numbers it may be 0."""
    layer = nn.Linear(32, 64).to(dtype)
    nn.init.zeros_(layer.weight)
    edges = torch.tensor(EDGES + [1.0] * (64 - len(EDGES)))
    with torch.inference_mode():
        [ours] = torch.ops.selvage.linear(torch.zeros(1, 32, dtype=dtype), PackedLinear(layer).weight, edges, number)
    smallest = 1e-6 if number == 1 else 128 * torch.finfo(torch.float32).tiny
    relative = 1e-5 if dtype == torch.float32 else 1e-2
    assert torch.allclose(ours.double(), function(edges.double()), rtol=relative, atol=smallest, equal_nan=True)


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation of rows in float64, and its numbers as the kernels take them; none where `weight` is None."""

    weight: Tensor | None
    bias: Tensor
    centred: bool

    @classmethod
    def random(cls, width: int, kind: str) -> "Norm":
        weight = None if kind == "none" else torch.randn(width) + 1
        return cls(weight, torch.randn(width) if kind == "layer" else torch.zeros(width), kind == "layer")

    @property
    def numbers(self) -> Tensor:
        return torch.empty(0) if self.weight is None else torch.stack([self.weight, self.bias])

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return x
        x = x - x.mean(dim=-1, keepdim=True) if self.centred else x
        return x * (x.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt() * self.weight + self.bias


KINDS = st.sampled_from(["layer", "rms"])


@given(st.data(), st.sampled_from(ACTIVATIONS), st.sampled_from(FORMATS))
def test_what_follows_attention_equals_pytorch(
    data: st.DataObject, activation: tuple[int, nn.Module], dtype: torch.dtype
) -> None:
    """Output, residuals, normalisations and feed-forward in every arrangement, against the same in float64."""
    rows, width, attended, inner = data.draw(ROWS), *(data.draw(WIDTHS) for _ in range(3))
    gated, post_normalised, kind = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(KINDS)
    torch.manual_seed(rows)
    number, function = activation
    norms = [Norm.random(width, data.draw(st.sampled_from([kind, "none"]))) for _ in range(3)]
    if post_normalised:
        norms[1] = Norm.random(width, "none")
    output, gate, up = (nn.Linear(*sizes).to(dtype) for sizes in ((attended, width), (width, inner), (width, inner)))
    down = nn.Linear(inner, width).to(dtype)
    x, states = torch.randn(rows, width).to(dtype), torch.randn(rows, attended).to(dtype)
    packed = [PackedLinear(linear) for linear in (output, alternating([gate, up]) if gated else up, down)]
    arguments = (
        [linear.weight for linear in packed],
        [linear.bias for linear in packed],
        [norm.numbers for norm in norms],
        EPSILON,
        kind == "layer",
        number,
        gated,
        post_normalised,
    )
    with torch.inference_mode():
        with in_threads(data.draw(THREADS)):
            ours = torch.ops.selvage.feed_forward(x, states, *arguments)
        places = (0, rows // 2, rows - 1)
        alone = [
            torch.ops.selvage.feed_forward(x[place : place + 1], states[place : place + 1], *arguments)
            for place in places
        ]
        added = output.double()(states.double())
        h = norms[0](x.double() + added) if post_normalised else x.double() + norms[0](added)
        n = norms[1](h)
        middle = function(gate.double()(n)) * up.double()(n) if gated else function(up.double()(n))
        added = down.double()(middle)
        expected = norms[2](h + added) if post_normalised else h + norms[2](added)
    assert close(ours, expected, dtype)
    assert torch.equal(torch.cat(alone), ours[list(places)])


@pytest.mark.parametrize("dtype", FORMATS)
def test_threads_that_steal_blocks_change_no_bits(dtype: torch.dtype) -> None:
    """Three callers at once, with more threads than there are cores, so that threads wait and steal in every order."""
    torch.manual_seed(0)
    width, inner, rows = 96, 1024, 100
    linears = [nn.Linear(*sizes).to(dtype) for sizes in ((width, width), (width, inner), (inner, width))]
    packed = [PackedLinear(linear) for linear in linears]
    norms = [Norm.random(width, kind).numbers for kind in ("layer", "none", "layer")]
    x = torch.randn(rows, width).to(dtype)

    def run() -> Tensor:
        weights, biases = [linear.weight for linear in packed], [linear.bias for linear in packed]
        with torch.inference_mode():
            y: Tensor = torch.ops.selvage.feed_forward(x, x, weights, biases, norms, EPSILON, True, 1, False, True)
        return y

    def equal(expected: Tensor) -> bool:
        with in_threads(4):
            return all(torch.equal(run(), expected) for _ in range(300))

    with in_threads(1):
        expected = run()
    with ThreadPoolExecutor(3) as callers:
        assert all(callers.map(equal, [expected] * 3))


def rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions written out: heads [T, H, D], cos and sin [T, width]."""
    width = cos.shape[1]
    turned, rest = heads[..., :width], heads[..., width:]
    low, high = turned.chunk(2, dim=-1)
    turned = turned * cos[:, None] + torch.cat([-high, low], dim=-1) * sin[:, None]
    return torch.cat([turned, rest], dim=-1)


@given(st.data(), ROWS, st.sampled_from([16, 32, 48, 64, 128]), st.sampled_from(FORMATS))
def test_what_precedes_attention_equals_pytorch(data: st.DataObject, rows: int, head: int, dtype: torch.dtype) -> None:
    """Normalisation, products, normalised heads and rotary positions of some or all numbers, against float64."""
    torch.manual_seed(rows)
    width, keys, group = data.draw(WIDTHS), 2, data.draw(st.integers(1, 3))
    queries, kind = keys * group, data.draw(st.sampled_from(["layer", "rms", "none"]))
    norm = Norm.random(width, kind)
    head_norms = [Norm.random(head, data.draw(st.sampled_from(["rms", "none"]))) for _ in range(2)]
    turned = data.draw(st.sampled_from([0, head // 2, head]))
    angles = torch.randn(rows, turned // 2).repeat(1, 2)
    linears = [nn.Linear(width, count * head).to(dtype) for count in (queries, keys, keys)]
    joined, x = PackedLinear(*linears), torch.randn(rows, width).to(dtype)

    def run(rows: slice) -> Tensor:
        cos, sin = (angles[rows].cos(), angles[rows].sin()) if turned else (None, None)
        numbers = [norm.numbers, *(part.numbers for part in head_norms)]
        shape = [head, queries, keys]
        y: Tensor = torch.ops.selvage.attention_inputs(
            x[rows], joined.weight, joined.bias, numbers, EPSILON, kind == "layer", shape, cos, sin
        )
        return y

    with torch.inference_mode():
        with in_threads(data.draw(THREADS)):
            ours = run(slice(None))
        places = (0, rows // 2, rows - 1)
        alone = [run(slice(place, place + 1)) for place in places]
        q, k, v = (linear.double()(norm(x.double())).view(rows, -1, head) for linear in linears)
        cos, sin = angles.double().cos(), angles.double().sin()
        q, k = (rotated(part(heads), cos, sin) for part, heads in zip(head_norms, (q, k), strict=True))
        expected = torch.cat([q, k, v], dim=1).flatten(1)
    assert close(ours, expected, dtype)
    assert torch.equal(torch.cat(alone), ours[list(places)])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("head", [16, 48, 64, 128])
@pytest.mark.parametrize("kind", ["rms", "none"])
def test_huge_heads_equal_pytorchs(kind: str, head: int, dtype: torch.dtype) -> None:
    """Heads of 64 and 128 numbers that are normalised are finished in one go, others step by step. Where the sum of
    squares leaves float32, either leaves what PyTorch leaves: the norm's bias, and NaN for what was infinite."""
    torch.manual_seed(head)
    count = 6
    heads = torch.randn(count, head).sign() * (torch.rand(count, head) + 0.5)
    heads *= torch.tensor([1.0, 1e17, 5e19, 1e38, 1.0, 1.0])[:, None]
    heads[4, 3], heads[5, head - 1] = float("inf"), float("nan")
    linear, norm = nn.Linear(32, (count + 2) * head).to(dtype), Norm.random(head, kind)
    nn.init.zeros_(linear.weight)
    angles = torch.randn(1, head // 2).repeat(1, 2)
    numbers = [torch.empty(0), norm.numbers, torch.empty(0)]
    bias = torch.cat([heads.flatten(), torch.zeros(2 * head)])
    with torch.inference_mode():
        ours = torch.ops.selvage.attention_inputs(
            torch.zeros(1, 32, dtype=dtype),
            PackedLinear(linear).weight,
            bias,
            numbers,
            EPSILON,
            False,
            [head, count, 1],
            angles.cos(),
            angles.sin(),
        )
        expected = rotated(norm(heads.to(dtype).float())[None], angles.cos(), angles.sin())[0]
    rows = ours[0, : count * head].view(count, head).float()
    assert torch.equal(rows.isnan(), expected.isnan())
    assert torch.equal(rows.isinf(), expected.isinf())
    for row, right in zip(rows.nan_to_num(0.0), expected.nan_to_num(0.0), strict=True):
        assert close(row, right.double(), dtype)


def rows_of(model: Model) -> Tensor:
    """Hidden states of a short text, a longer one and a long one, in one batch."""
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (3, 40, 300)]
    batch = RaggedBatch.pack(texts, torch.device("cpu"), model.encoder.uncounted, types=model.encoder.token_types)
    with torch.inference_mode():
        return model.encoder(batch).float()


def test_a_model_with_native_layers_gives_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card says how its layers run; without kernels it says so too, with what builds them."""
    model = load(random_model("tiny-bert"), CPU)
    assert model.linear.startswith(f"native ({LIBRARY.instructions})")
    assert any("layers run whole by the processor's kernels" in line for line in model.findings)
    assert not any(library.COMMAND in line for line in model.findings)
    assert isinstance(model.encoder, NativeEncoder)
    no_kernels(monkeypatch, f"none are built; {library.COMMAND} builds them")
    usual = load(random_model("tiny-bert"), CPU)
    assert "native" not in usual.linear
    assert any(library.COMMAND in line for line in usual.findings)
    assert usual.fingerprint == model.fingerprint
    assert torch.allclose(rows_of(model), rows_of(usual), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((torch.zeros(3, 31), torch.zeros(1, 32, 32, 1), torch.zeros(32), 0), "x must be"),
        ((torch.zeros(3, 32), torch.zeros(1, 32, 32, 1), torch.zeros(31), 0), "bias must have"),
        ((torch.zeros(3, 32), torch.zeros(32, 32), torch.zeros(32), 0), "not packed"),
        ((torch.zeros(3, 32), torch.zeros(1, 32, 16, 1), torch.zeros(16), 0), "outputs in blocks of 64 or 32"),
        ((torch.zeros(3, 32), torch.zeros(1, 32, 32, 1), torch.zeros(32), 9), "no activation 9"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason):
        torch.ops.selvage.linear(*arguments)
