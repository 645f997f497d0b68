"""int8 layers on processors: they equal their twin in float64, a token depends on no other, models stay near to
themselves or are refused."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertLayer

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.cpu import library
from gpu_worker.model import execution
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.native.families import FAMILIES
from gpu_worker.model.native.native_model import NativeEncoder
from gpu_worker.model.native.packed_linear import BlockedLinear, QuantizedLinear, blocked, rounded
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tune import linear as module
from gpu_worker.model.tune.linear import Int8Linear, Linear, check_int8, install_int8
from gpu_worker.model.verify import tolerances
from gpu_worker.model.verify.gate import Reference
from gpu_worker.model.verify.tolerances import Expected, cosines, rounded_logits, rounded_states
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import load_model
from harness.random_models import miniature
from shared.errors import ModelRefused
from shared.jobs import Job
from support.flaws import Flawed
from support.native import EMULATED, LIBRARY, emulated_instructions, has_itself, needs_kernels
from support.random_models import random_model
from support.tiny import DENSE, dense_rows, encode, run, tokens

FORMATS = sorted(LIBRARY.formats, key=str)
CPU = Placement.choose("cpu", "float32")


def quantised(x: torch.Tensor) -> torch.Tensor:
    """Rows as 256 steps between their least and their largest number, 0 among them: the twin of `source/linear.h`."""
    least, largest = x.amin(dim=1, keepdim=True).clamp(max=0), x.amax(dim=1, keepdim=True).clamp(min=0)
    step = ((largest - least) / 255).clamp(min=1e-30)
    return ((x - least) / step).round().clamp(0, 255) * step + least


@needs_kernels
@given(
    st.integers(1, 150), st.sampled_from([32, 96, 384]), st.sampled_from([32, 64, 96, 384]), st.sampled_from(FORMATS)
)
def test_layers_equal_their_twin(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    """Written out with the same rounded numbers; alone a token gives the same bits."""
    torch.manual_seed(rows)
    linear = nn.Linear(inputs, outputs).to(dtype)
    x = (torch.randn(rows, inputs) * 3).to(dtype)
    weight, scales = rounded(linear.weight.detach())
    with torch.inference_mode():
        ours = Int8Linear(linear)(x)
        alone = Int8Linear(linear)(x[rows // 2 :][:1])
        expected = quantised(x.double()) @ (weight.double() * scales.double()[:, None]).t() + linear.bias.double()
    # A number that lies between two steps may be rounded to either.
    bound = 2 * float(x.abs().max()) / 255 * float(weight.abs().max() * scales.max()) + 1e-5
    assert (ours.double() - expected).abs().max() < bound * (1 if dtype == torch.float32 else 8)
    assert torch.equal(alone[0], ours[rows // 2])


@needs_kernels
@pytest.mark.skipif(not EMULATED, reason="make emulated alone")
def test_products_are_made_by_the_emulated_instructions() -> None:
    """Else the tests would pass by those of the processor at hand."""
    instructions = {"amx": "amx_int8", "avx_vnni": "avx_vnni"}.get(EMULATED, "avx512_vnni")
    if has_itself(instructions):
        pytest.skip(f"this processor has {instructions}")
    before = emulated_instructions()
    Int8Linear(nn.Linear(64, 32))(torch.randn(3, 64))
    assert emulated_instructions() > before


@needs_kernels
def test_rows_at_the_edge() -> None:
    """Zeros, equal numbers, one large number, numbers of one sign: all finite, off by a step at most."""
    linear = nn.Linear(64, 32)
    rows = [torch.zeros(64), torch.full((64,), 7.0), torch.full((64,), -1e-20), torch.arange(64.0), -torch.rand(64)]
    x = torch.stack([*rows, torch.eye(64)[3] * 1e4])
    with torch.inference_mode():
        ours, exact = Int8Linear(linear)(x), linear(x)
    assert torch.isfinite(ours).all()
    assert ((ours - exact).abs().amax(dim=1) <= 0.3 + x.abs().amax(dim=1) / 50).all()


@needs_kernels
@given(st.integers(1, 40), st.sampled_from([32, 96, 384]), st.sampled_from([32, 64, 192]), st.integers(0, 9))
def test_sums_are_exact_where_neighbours_come_to_128(rows: int, inputs: int, outputs: int, seed: int) -> None:
    """The largest numbers of each side, which fill 16 bits without VNNI, among random ones."""
    chance = np.random.default_rng(seed)
    left = chance.integers(-127, 128, (outputs, inputs // 2))
    right = chance.integers(np.maximum(-127, -128 - left), np.minimum(127, 128 - left), endpoint=True)
    weight = np.stack([left, right], axis=2)
    weight[:3] = np.array([[64, 64], [-64, -64], [127, 1]])[:, None]
    weight = weight.reshape(outputs, inputs)
    x = chance.integers(0, 256, (rows, inputs))
    x[0], x[:, -1] = 255, 255  # so that each number is a step of its row
    packed, ones = blocked(torch.from_numpy(weight).to(torch.int8)), torch.ones(outputs)
    numbers = torch.stack([0 * ones, ones, torch.from_numpy(weight.sum(axis=1)).float()])
    y = BlockedLinear(packed, numbers)(torch.from_numpy(x).float())
    assert np.array_equal(y.numpy(), x @ weight.T)


@needs_kernels
@given(st.integers(1, 6), st.integers(1, 150))
def test_weights_are_off_by_half_a_step(outputs: int, pairs: int) -> None:
    """Each output has its own scale; a row of zeros stays zeros; two neighbours come to 128 at most."""
    weight = torch.randn(outputs, 2 * pairs) * torch.logspace(-3, 3, outputs)[:, None]
    weight[0] = 0
    numbers, scales = rounded(weight)
    assert (numbers * scales[:, None] - weight).abs().le(scales[:, None] * 0.5001).all()
    assert not numbers[0].any()
    assert numbers.int().view(outputs, pairs, 2).sum(dim=2).abs().max() <= 128


def test_neighbours_of_half_a_step_are_rounded_up_together() -> None:
    """63.5 and 63.5 are the worst: 64 and 64 still fit into 16 bits with 255."""
    numbers, scales = rounded(torch.tensor([[0.5, 0.5, -0.5, -0.5, 1.0, -1.0]]))
    assert numbers.tolist() == [[64, 64, -64, -64, 127, -127]]
    assert scales == 1 / 127


def loaded(name: str, linear: Linear, dtype: str = "float32") -> Model:
    return load(random_model(name), Placement.choose("cpu", dtype), LoadOptions(linear=linear, max_tokens=64))  # type: ignore[arg-type]


def vectors(model: Model) -> np.ndarray:
    result = run(ModelEngine(model), [Job(id=1, work=encode(DENSE), tokens=tokens(5, 40, 1, 17))])[0]
    return dense_rows(result)


@needs_kernels
@pytest.mark.parametrize("dtype", [str(dtype).removeprefix("torch.") for dtype in FORMATS])
def test_a_load_in_int8(dtype: str) -> None:
    """Other numbers, near the ones before, another fingerprint; the card and the log say so; a smaller model."""
    usual, eight = loaded("tiny-roberta", "auto", dtype), loaded("tiny-roberta", "int8", dtype)
    cosines = (vectors(usual) * vectors(eight)).sum(axis=1)
    assert cosines.min() > 0.98
    assert cosines.max() < 0.99999
    assert usual.fingerprint != eight.fingerprint
    assert card_of(eight).linear == "int8 by token"
    assert card_of(eight).dtype == dtype
    line = next(line for line in eight.findings if "whole layers" in line)
    assert "whole layers in int8 by token: cosine 0.99" in line
    assert isinstance(eight.encoder, NativeEncoder)
    assert sum(isinstance(module, QuantizedLinear) for module in eight.encoder.model.layers[0].modules()) == 4
    assert eight.weight_bytes < usual.weight_bytes


@needs_kernels
def test_layers_of_no_known_form_are_rounded_one_by_one() -> None:
    """But for those that choose experts, that a head shares, or whose sizes the kernels do not take."""
    shared = nn.Linear(32, 32)
    model = nn.ModuleDict(
        {"up": nn.Linear(32, 64), "odd": nn.Linear(64, 30), "gate": nn.Linear(32, 32), "head": shared}
    )
    assert install_int8(model, [nn.Sequential(shared)]) == "1 linear layers in int8 by token, 2 left as they are"
    assert isinstance(model["up"], Int8Linear)
    assert model["up"](torch.randn(2, 3, 32)).shape == (2, 3, 64)
    with pytest.raises(ModelRefused, match="has no linear layer that fits"):
        install_int8(nn.Sequential(nn.Linear(32, 30)))


@needs_kernels
def test_layers_that_compute_something_else_are_rounded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose forward does more than its parts tell: cosines alone would not notice."""
    honest = BertLayer.forward
    monkeypatch.setattr(BertLayer, "forward", lambda *arguments, **options: honest(*arguments, **options) * 1.02)
    model = loaded("tiny-bert", "int8")
    assert Int8Linear in {type(module) for module in model.encoder.model.modules()}
    assert not model.native_layers


@needs_kernels
def test_what_rounding_changes_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the figures: by a bound above what rounding leaves."""
    monkeypatch.setattr(tolerances, "LEAST_COSINE", 0.99999)
    with pytest.raises(ModelRefused, match=r"change it too much: cosine 0\.99\d+ over tokens, .* wanted are 0\.99999"):
        loaded("tiny-roberta", "int8")


@needs_kernels
def test_logits_are_judged_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a classifier that passes, and does not by a bound above what rounding leaves."""
    findings = loaded("tiny-classifier", "int8").findings
    assert any(line.startswith("logits of rounded layers: cosine 0.99") for line in findings)
    monkeypatch.setattr(tolerances, "LEAST_COSINE", 0.999999)
    monkeypatch.setattr(Reference, "check_rounded", lambda *_: "")
    with pytest.raises(ModelRefused, match=r"change its logits too much: cosine 0\.99\d+, wanted is 0\.999999"):
        loaded("tiny-classifier", "int8")


class Strong(OneByOne):
    """An attention that is a little off, by less than rounding is."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        return super().__call__(query, key, value, batch, terms) * 1.03


@needs_kernels
@pytest.mark.parametrize("attention", [Strong(), Flawed("mixes sequences")], ids=["a little off", "mixes sequences"])
def test_rounding_excuses_no_mistake(attention: OneByOne, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact gate comes first: the packed run does not pass it, and the other way serves."""
    monkeypatch.delitem(FAMILIES, "bert")
    monkeypatch.setattr(execution.attention_choice, "choose", lambda *_, **__: attention)
    model = loaded("tiny-bert", "int8")
    assert "it does not run among other texts as it runs alone" in model.encoder.unpacked_reason
    assert model.encoder.description.startswith("equal length")


def test_cosines_of_nothing() -> None:
    """Two rows of zeros are alike, one of them alone is not; NaN is no vector."""
    zero, one = torch.zeros(1, 4), torch.ones(1, 4)
    assert cosines(torch.cat([zero, zero, one]), torch.cat([zero, one, one])).tolist() == pytest.approx([1.0, 0.0, 1.0])
    ones = torch.ones(3, 4)
    expected = Expected(exact=ones, rows=ones, lengths=[1, 2])
    assert rounded_states(ones, expected).near
    assert rounded_logits(ones, expected).near
    for bad in (float("nan"), float("inf")):
        hidden = torch.ones(3, 4)
        hidden[1, 1] = bad
        assert not rounded_states(hidden, expected).near
        assert not rounded_logits(hidden, expected).near


@needs_kernels
def test_models_that_do_not_run_packed_are_served_in_int8_too(tmp_path: Path) -> None:
    """Whole layers run in packed batches alone; linear layers run anywhere. Nor does an exact load try whole layers."""
    miniature.write(tmp_path, "splinter")
    eight, exact = load(str(tmp_path), CPU, LoadOptions(linear="int8")), load(str(tmp_path), CPU)
    reason = "transformers' class takes no attention but its own"
    assert eight.encoder.unpacked_reason == exact.encoder.unpacked_reason == reason
    assert any(isinstance(module, Int8Linear) for module in eight.encoder.model.modules())
    assert not any("native" in line for line in exact.findings)


@needs_kernels
def test_minilm_stays_near_to_itself() -> None:
    """Real weights: a mean cosine of 0.995 over texts, 0.99 at least, by the gate's hard texts."""
    model = load("minilm", CPU, LoadOptions(linear="int8"))
    line = next(line for line in model.findings if "int8 by token" in line)
    texts, lowest = (float(line.partition(f" {words}")[0].split()[-1]) for words in ("over texts", "at the lowest"))
    assert texts >= 0.995
    assert lowest >= 0.99
    assert not math.isnan(lowest)


@needs_kernels
@pytest.mark.parametrize(("linear", "dtype"), [("auto", "float32"), ("int8", "float32"), ("auto", "bfloat16")])
def test_a_card_tells_which_formats_may_be_faster(linear: Linear, dtype: str) -> None:
    """Those that the kernels have, beside float32 without another."""
    formats = ["--dtype bfloat16"] * (torch.bfloat16 in FORMATS) + ["--dtype int8"]
    told = f"may be faster on this processor, and rounded: {', '.join(formats)}"
    assert card_of(loaded("tiny-bert", linear, dtype)).formats == (
        told if (linear, dtype) == ("auto", "float32") else ""
    )


@needs_kernels
def test_the_setting_rounds_layers_and_nothing_else() -> None:
    """Everything else is float32, whatever the files say."""
    folder = random_model("tiny-bert")
    model = load_model(WorkerSettings.read(["--model", folder, "--device", "cpu", "--dtype", "int8"]))
    assert "int8" in model.linear
    assert model.placement.dtype == torch.float32


def test_processors_without_it_refuse_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they read a model; the reason names what is missing."""
    for kernels, reason in (
        (library.KernelLibrary(missing="none are built"), "the processor's kernels: none are built"),
        (library.KernelLibrary(formats=frozenset({torch.float32})), "have no bfloat16"),
    ):
        monkeypatch.setattr(module.library, "load", lambda kernels=kernels: kernels)
        with pytest.raises(ModelRefused, match=f"--dtype = 'int8'.*{reason}"):
            load("no such model", Placement.choose("cpu", "bfloat16"), LoadOptions(linear="int8"))
    with pytest.raises(ModelRefused, match="it is for processors; this is cuda:0"):
        check_int8(Placement(device=torch.device("cuda:0"), dtype=torch.bfloat16))
