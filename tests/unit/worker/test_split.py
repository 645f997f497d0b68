"""float32 by products of bfloat16: as near to float64 as promised, the same bits alone and among others, and chosen
only where it is clearly faster and the model stays near to its own float32."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model import preparation
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune import split
from gpu_worker.model.tune.blocked_linear import PackedLinear
from gpu_worker.model.tune.split import NAMES, SplitLinear
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.random_models import miniature
from shared.jobs import Job
from shared.ragged import RaggedTokens
from support import parity
from support.native import LIBRARY
from support.parity import Expected, Tables, Texts, assert_parity
from support.references import mini_lm_path, words
from support.tiny import DENSE, MULTI, dense_rows, encode, run, token_rows

needs_bf16 = pytest.mark.skipif(
    not {torch.float32, torch.bfloat16} <= LIBRARY.formats, reason="this processor's kernels have no bfloat16 products"
)
CPU = Placement.choose("cpu", "float32")
THREE, SIX = NAMES[2], NAMES[3]
AS_WITH_AMX = {"float32": 8.0, "bfloat16": 1.0, THREE: 3.0, SIX: 6.0}
WIDTHS = st.sampled_from([32, 64, 96, 384])
PARTS = st.sampled_from(sorted(NAMES))


def bound(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """Largest error of x W^T: of numbers off by 2^-17 or 2^-25, of products left out, and of sums in float32."""
    inputs = x.shape[1]
    share = {2: 2.0**-15, 3: 2.0**-22}[parts] + (parts * inputs + 4) * 2.0**-24
    return (x.abs() @ weight.abs().t()) * share + 1e-30


@needs_bf16
@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), WIDTHS, st.lists(WIDTHS, min_size=1, max_size=3), PARTS, st.integers(-12, 12))
def test_layers_equal_products_in_float64(
    rows: int, inputs: int, outputs: list[int], parts: int, magnitude: int
) -> None:
    """Any number of rows, one or several layers on an input, numbers of any size; alone a row has the same bits."""
    torch.manual_seed(rows)
    linears = [nn.Linear(inputs, width, bias=place != 1) for place, width in enumerate(outputs)]
    x = torch.randn(rows, inputs) * 10.0**magnitude
    layer = SplitLinear(*linears, parts=parts)
    with torch.inference_mode():
        ours, alone = layer(x), layer(x[rows // 2 :][:1])
        exact = torch.cat([linear.double()(x.double()) for linear in linears], dim=1)
        weight = torch.cat([linear.weight for linear in linears])
    assert (layer.in_features, layer.out_features) == (inputs, sum(outputs))
    assert ((ours.double() - exact).abs() <= bound(x.double(), weight.double(), parts) + 2.0**-23 * exact.abs()).all()
    assert torch.equal(alone[0], ours[rows // 2])


@needs_bf16
@pytest.mark.parametrize("inputs", [32, 384, 1536])
def test_six_products_err_as_float32_does(inputs: int) -> None:
    """In root mean square at most 1.5 times as much as the kernels' own product; three products some ten times."""
    torch.manual_seed(0)
    linear, x = nn.Linear(inputs, 384), torch.randn(200, inputs)
    with torch.inference_mode():
        layers = [PackedLinear(linear), *(SplitLinear(linear, parts=parts) for parts in NAMES)]
        products = [layer(x).double() for layer in layers]
        exact = linear.double()(x.double())
    usual, three, six = (float((product - exact).square().mean().sqrt()) for product in products)
    assert six <= 1.5 * usual
    assert 3e-7 < three < 1e-5


@needs_bf16
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 200), WIDTHS, WIDTHS, WIDTHS)
def test_what_follows_attention_equals_float64(rows: int, width: int, attended: int, inner: int) -> None:
    """Output, residual, normalisation and feed-forward in one call, by six products."""
    torch.manual_seed(rows)
    output, up, down = (nn.Linear(*sizes) for sizes in ((attended, width), (width, inner), (inner, width)))
    norms = [nn.LayerNorm(width) for _ in range(2)]
    x, states = torch.randn(rows, width), torch.randn(rows, attended)
    layers = [SplitLinear(linear, parts=3) for linear in (output, up, down)]
    first, last = (torch.stack([norm.weight.detach(), norm.bias.detach()]) for norm in norms)
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    options = ([first, torch.empty(0), last], 1e-5, True, 1, False, True)
    with torch.inference_mode():
        ours = torch.ops.selvage.feed_forward(x, states, weights, biases, *options)
        middle = norms[0].double()(x.double() + output.double()(states.double()))
        exact = norms[1].double()(middle + down.double()(nn.functional.gelu(up.double()(middle))))
        place = slice(rows // 2, rows // 2 + 1)
        alone = torch.ops.selvage.feed_forward(x[place], states[place], weights, biases, *options)
    assert (ours.double() - exact).abs().max() < 2e-6 * max(1.0, float(exact.abs().max()))
    assert torch.equal(alone[0], ours[rows // 2])


@needs_bf16
@pytest.mark.parametrize("parts", sorted(NAMES))
def test_rows_at_the_edge(parts: int) -> None:
    """Zeros, the smallest numbers, large ones; a row that is not finite spoils no other."""
    linear = nn.Linear(64, 32)
    rows = [torch.zeros(64), torch.full((64,), 1e-40), torch.full((64,), -1e30), torch.eye(64)[3] * 1e-20]
    x = torch.stack([*rows, torch.full((64,), float("inf")), torch.full((64,), float("nan")), torch.ones(64)])
    with torch.inference_mode():
        ours = SplitLinear(linear, parts=parts)(x)
        exact = linear.double()(x.double())
    finite = [0, 1, 2, 3, 6]
    allowed = bound(x[finite].double(), linear.weight.detach(), parts) + 2.0**-23 * exact[finite].abs()
    assert ((ours[finite].double() - exact[finite]).abs() <= allowed).all()
    assert not torch.isfinite(ours[[4, 5]]).any()


@given(st.integers(0, 2**32 - 1), PARTS)
def test_parts_are_the_number_again(seed: int, parts: int) -> None:
    """Off by 2^-17 of it at most with two parts, exactly or by 2^-25 with three."""
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(seed)) * 3
    total = sum(part.double() for part in split.split(numbers, parts))
    assert ((total - numbers.double()).abs() <= 2.0 ** -(8 * parts + 1) * numbers.abs()).all()


@pytest.mark.parametrize("outputs", [32, 64, 384])
def test_packed_layers_are_unpacked(outputs: int) -> None:
    """In the order of their outputs, one layer after the other."""
    linears = [nn.Linear(64, outputs), nn.Linear(64, outputs, bias=False)]
    joined = PackedLinear(*linears).unpacked()
    assert torch.equal(joined.weight, torch.cat([linear.weight for linear in linears]))
    assert torch.equal(joined.bias, torch.cat([linears[0].bias, torch.zeros(outputs)]))


@needs_bf16
@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        (torch.zeros(3, 32).bfloat16(), torch.zeros(1, 2, 16, 32, 2).bfloat16(), "in parts are for float32"),
        (torch.zeros(3, 64), torch.zeros(1, 2, 16, 32, 2).bfloat16(), "x must be"),
        (torch.zeros(3, 32), torch.zeros(1, 0, 16, 32, 2).bfloat16(), "multiples of 32"),
        (torch.zeros(3, 48), torch.zeros(1, 2, 24, 32, 2).bfloat16(), "multiples of 32"),
        (torch.zeros(3, 32), torch.zeros(1, 16, 32, 2).bfloat16(), "number formats differ"),
        (torch.zeros(3, 32), torch.zeros(1, 2, 16, 32, 2), "expected scalar type BFloat16"),
    ],
)
def test_weights_that_do_not_fit_are_refused(x: Tensor, weight: Tensor, reason: str) -> None:
    """Plain bfloat16 weights with float32 rows among them."""
    with pytest.raises(RuntimeError, match=reason):
        torch.ops.selvage.linear(x, weight, torch.zeros(32), 0)


@pytest.mark.parametrize(
    ("seconds", "parts"),
    [
        (AS_WITH_AMX, [2, 3]),
        ({"float32": 6.0, THREE: 3.0, SIX: 6.0}, [2]),
        ({"float32": 2.0, "bfloat16": 1.0, THREE: 3.0, SIX: 6.0}, []),
        ({"float32": 3.5, THREE: 3.0, SIX: 6.0}, []),
        ({"float32": 2.0}, []),
        ({}, []),
    ],
)
def test_products_serve_where_they_are_clearly_faster(seconds: dict[str, float], parts: list[int]) -> None:
    """Near ties, and processors whose kernels have no bfloat16, keep float32's own."""
    assert [*split.paying(seconds)] == parts


def loaded(
    monkeypatch: pytest.MonkeyPatch, name: str, seconds: dict[str, float], dtype: str = "float32", max_tokens: int = 400
) -> Model:
    """A model as a processor loads it whose products take so long."""
    monkeypatch.setattr(preparation.format_speeds, "product_seconds", lambda _: seconds)
    return load(name, Placement.choose("cpu", dtype), max_tokens=max_tokens)  # type: ignore[arg-type]


def layers_of(model: Model) -> list[SplitLinear]:
    return [module for module in model.encoder.model.modules() if isinstance(module, SplitLinear)]


@needs_bf16
def test_a_load_by_six_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Card and log say so; the fingerprint is the same, since the vectors are."""
    six = loaded(monkeypatch, "random:tiny-bert", AS_WITH_AMX)
    usual = loaded(monkeypatch, "random:tiny-bert", {"float32": 2.0, THREE: 3.0, SIX: 6.0})
    assert card_of(six).linear.endswith(f"; whole layers: {SIX}")
    assert "whole layers" not in card_of(usual).linear
    assert any(line.startswith(f"no {THREE}: unit-length vectors within ") for line in six.findings)
    assert any(line.startswith(f"{SIX} serve: unit-length vectors within ") for line in six.findings)
    assert {layer.weight.shape[1] for layer in layers_of(six)} == {3}
    assert not layers_of(usual)
    assert six.fingerprint == usual.fingerprint
    assert six.weight_bytes > usual.weight_bytes


@needs_bf16
def test_a_model_that_three_products_change_is_served_by_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no others pay: card and log say so, and the layers are those from before."""
    model = loaded(monkeypatch, "random:tiny-bert", {"float32": 4.0, THREE: 2.0, "bfloat16": 0.8, SIX: 4.0})
    assert card_of(model).linear.endswith("; whole layers: float32")
    assert not layers_of(model)
    assert any(isinstance(module, PackedLinear) for module in model.encoder.model.modules())
    assert "products in bfloat16 are 5.0 x as fast on this processor" in model.formats


@needs_bf16
def test_other_formats_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in bfloat16 has no float32 products."""
    model = loaded(monkeypatch, "random:tiny-bert", AS_WITH_AMX, "bfloat16")
    assert not layers_of(model)
    assert "whole layers" not in model.linear


@needs_bf16
def test_products_that_err_serve_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate sees a hundred-thousandth."""
    honest = split.split
    monkeypatch.setattr(split, "split", lambda numbers, parts: honest(numbers * 1.00003, parts))
    model = loaded(monkeypatch, "random:tiny-bert", AS_WITH_AMX)
    assert model.linear.endswith("; whole layers: float32")
    assert sum(line.startswith("no float32 by ") for line in model.findings) == 2


@needs_bf16
@pytest.mark.parametrize("output", ["vectors", "splade", "cross-encoder", "token labels"])
def test_every_output_is_that_of_transformers(tables: Tables, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the files to the numbers, by six products."""
    model = loaded(monkeypatch, str(tables.folder("tiny-bert", output)), AS_WITH_AMX)
    assert layers_of(model)
    ours = parity.ours(ModelEngine(model), output, Texts.of("tiny-bert", output, "float32"))
    assert_parity(ours, Expected.of(tables, "tiny-bert", output, "float32"), "float32")


@cache
def sentences() -> list[str]:
    """Real sentences of this repository's pages, and one long text of random words."""
    pages = " ".join(Path("docs", name).read_text() for name in ("decisions.md", "promises.md", "glossary.md"))
    pieces = [sentence.strip() for sentence in re.split(r"(?<=[.:;])\s+", pages)]
    return [*[sentence for sentence in pieces if len(sentence) > 20][:150], words(200, 0)]


@needs_bf16
def test_minilm_is_that_of_sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real weights and real texts: unit-length vectors and token rows within 5e-6, cosines of pairs within 5e-5."""
    model, oracle = loaded(monkeypatch, "minilm", AS_WITH_AMX), SentenceTransformer(mini_lm_path(), device="cpu")
    assert {layer.weight.shape[1] for layer in layers_of(model)} == {3}
    ids = [oracle.tokenizer(text, truncation=True, max_length=256)["input_ids"] for text in sentences()]
    result = run(ModelEngine(model), [Job(id=1, work=encode(DENSE, MULTI), tokens=RaggedTokens.of(ids))])[0]
    ours, expected = np.stack(dense_rows(result)), oracle.encode(sentences(), batch_size=1, normalize_embeddings=True)
    assert np.abs(ours - expected).max() < 5e-6
    assert np.abs(ours @ ours.T - expected @ expected.T).max() < 5e-5
    tokens = oracle.encode(sentences(), batch_size=1, output_value="token_embeddings")
    for rows, theirs in zip(token_rows(result), tokens, strict=True):
        assert np.abs(rows - nn.functional.normalize(theirs, dim=1).numpy()).max() < 5e-6


@needs_bf16
@pytest.mark.parametrize("layers", [24, 28])
def test_deep_models_stay_near(layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights, which the gate compares; alone and among others a text has the same bits."""
    miniature.write(tmp_path, "bert", num_hidden_layers=layers)
    model = loaded(monkeypatch, str(tmp_path), AS_WITH_AMX, max_tokens=256)
    assert len(layers_of(model)) == 4 * layers
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (3, 40, 60)]
    with torch.inference_mode():
        among = model.encoder(RaggedBatch.pack(texts, torch.device("cpu"), None, types=model.encoder.token_types))
        alone = model.encoder(RaggedBatch.pack(texts[1:2], torch.device("cpu"), None, types=model.encoder.token_types))
    assert torch.equal(among[3:43], alone)
