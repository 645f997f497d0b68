"""What a load tells of other number formats: cosines as transformers' own runs give them; the model stays as it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from gpu_worker.kernels.cpu import library
from gpu_worker.model import format_trials
from gpu_worker.model.card import card_of
from gpu_worker.model.format_trials import LONGEST, TEXTS, TOO_LARGE, FormatTrials, trial_cosines
from gpu_worker.model.heads.dense import DenseHead
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.multi_vector import MultiVectorHead
from gpu_worker.model.loading import load
from gpu_worker.model.tune import format_speeds
from gpu_worker.model.tune.int8 import rounded
from gpu_worker.model.tune.linear import plain_layers
from gpu_worker.model.verify.gate import Reference
from gpu_worker.model.verify.probes import Probes
from gpu_worker.startup.warm_up import check_model
from support.native import needs_int8
from support.tiny import CPU

FASTER = {"float32": 4.0, "bfloat16": 2.0}


@pytest.fixture
def bfloat16_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_speeds, "product_seconds", lambda _: FASTER)


def own_hidden(model: Any, texts: list[Any]) -> list[Tensor]:
    """Hidden states [L, H] float32 of each text, by transformers alone."""
    with torch.inference_mode():
        return [model(input_ids=torch.tensor(text)[None].long()).last_hidden_state[0].float() for text in texts]


def reference_of(model: Any) -> Reference:
    return Reference(model, Probes.of(model.config, 64, (0, 2, 3)))


def tried(reference: Reference) -> list[Any]:
    """The texts of a trial: the first and the last short ones."""
    short = [text for text in reference.probes.texts if len(text) <= LONGEST]
    return [*short[: TEXTS // 2], *short[-TEXTS // 2 :]]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_cosine_is_that_of_transformers(encoder: Path, pooling: str) -> None:
    """Its class loaded in both formats, pooled by hand; the least of all texts."""
    models = [AutoModel.from_pretrained(encoder, dtype=dtype).eval() for dtype in (torch.float32, torch.bfloat16)]
    reference = reference_of(models[0])
    heads = Heads(dense=DenseHead((pooling,), nn.Sequential(), 64))
    [(name, cosine)] = trial_cosines(models[0], heads, reference, ["bfloat16"]).items()
    exact, half = (
        torch.stack([rows[0] if pooling == "cls" else rows.mean(dim=0) for rows in own_hidden(model, tried(reference))])
        for model in models
    )
    assert name == "bfloat16"
    assert cosine == pytest.approx(float(torch.cosine_similarity(exact, half).min()), abs=1e-6)
    assert cosine < 0.99999


@pytest.mark.parametrize("layers", [None, nn.Linear(64, 16, bias=False)])
def test_token_vectors_count_in_the_mean_over_a_text(encoder: Path, layers: nn.Module | None) -> None:
    """Where the model makes no vectors; hidden states where it makes no token vectors either."""
    models = [AutoModel.from_pretrained(encoder, dtype=dtype).eval() for dtype in (torch.float32, torch.bfloat16)]
    reference = reference_of(models[0])
    project = layers or nn.Identity()
    head = layers and MultiVectorHead(nn.Sequential(layers), 16, skip_first=False, mean=False)
    found = trial_cosines(models[0], Heads(multi_vector=head), reference, ["bfloat16"])["bfloat16"]
    with torch.inference_mode():
        exact, half = ([project(rows) for rows in own_hidden(model, tried(reference))] for model in models)
    means = [torch.cosine_similarity(a, b).mean().item() for a, b in zip(exact, half, strict=True)]
    assert found == pytest.approx(min(means), abs=1e-6)


@needs_int8
def test_int8_is_near_to_rounded_weights(encoder: Path) -> None:
    """In float32 with weights of eight bits; the activations, which are rounded too, take it a little further away."""
    model, twin = (AutoModel.from_pretrained(encoder).eval() for _ in range(2))
    reference = reference_of(model)
    for _, _, layer in plain_layers(twin):
        weight, scales = rounded(layer.weight.detach())
        layer.weight.data = weight * scales[:, None]
    found = trial_cosines(model, Heads(), reference, ["int8"])["int8"]
    exact, near = (own_hidden(each, tried(reference)) for each in (model, twin))
    weights_alone = min(torch.cosine_similarity(a, b).mean().item() for a, b in zip(exact, near, strict=True))
    assert 4 * (weights_alone - 1) < found - 1 < 0.5 * (weights_alone - 1)


def test_a_trial_leaves_no_trace(encoder: Path) -> None:
    """Every weight is where and what it was, also where the model fails in the other format."""
    model = AutoModel.from_pretrained(encoder).eval()
    reference = reference_of(model)
    before = [(weight, weight.data_ptr(), weight.detach().clone()) for weight in model.parameters()]
    modules = list(model.modules())
    for fails in (False, True):
        if fails:
            reference.run_one_by_one = None  # type: ignore[assignment, method-assign]
        found = trial_cosines(model, Heads(), reference, ["bfloat16", "int8"])
        assert ("bfloat16" in found) is not fails
        assert [id(weight) for weight in model.parameters()] == [id(weight) for weight, _, _ in before]
        assert all(weight.data_ptr() == place for weight, place, _ in before)
        assert all(torch.equal(weight, numbers) for weight, _, numbers in before)
        assert all(mine is other for mine, other in zip(model.modules(), modules, strict=True))


@pytest.mark.usefixtures("bfloat16_is_fast")
def test_a_load_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    """On the card, which --check prints, with the cosine of this model."""
    card = card_of(load("random:tiny-bert", CPU))
    line = "products in bfloat16 are 2.0 x as fast on this processor; cosine to float32 0.99"
    assert card.formats.startswith(line)
    assert card.formats.endswith(": --dtype bfloat16")
    assert check_model("m", lambda: load("random:tiny-bert", CPU)) == 0
    assert f"{'formats':26} {line}" in capsys.readouterr().out


def test_a_slow_choice_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the log warns of."""
    monkeypatch.setattr(format_speeds, "product_seconds", lambda _: {"float32": 1.0, "bfloat16": 2.0})
    model = load("random:tiny-bert", replace(CPU, dtype=torch.bfloat16))
    assert "bfloat16 is slower than float32 on this processor: its products take 2.0 times as long" in model.notice
    assert not load("random:tiny-bert", CPU).formats


@pytest.mark.usefixtures("bfloat16_is_fast")
def test_large_models_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says so."""
    monkeypatch.setattr(format_trials, "MOST_WEIGHTS", 1000)
    monkeypatch.setattr(format_trials, "trial_cosines", None)
    assert load("random:tiny-bert", CPU).formats == (
        f"products in bfloat16 are 2.0 x as fast on this processor; cosine {TOO_LARGE}: --dtype bfloat16"
    )


def test_what_a_class_keeps_of_a_run_is_left_with_the_copy() -> None:
    """CTRL keeps its positions in the format that it ran in last."""
    config = AutoConfig.for_model("ctrl", vocab_size=100, n_positions=64, n_embd=32, dff=64, n_layer=2, n_head=2)
    model = AutoModel.from_config(config).eval()
    before = model(input_ids=torch.arange(9)[None]).last_hidden_state
    assert trial_cosines(model, Heads(), reference_of(model), ["bfloat16"])["bfloat16"] < 1
    assert model.pos_encoding.dtype == torch.float32
    assert torch.equal(model(input_ids=torch.arange(9)[None]).last_hidden_state, before)


@pytest.mark.usefixtures("bfloat16_is_fast")
def test_what_would_be_refused_is_no_advice(monkeypatch: pytest.MonkeyPatch, encoder: Path) -> None:
    """Nor is a format in which the model cannot run."""
    model = AutoModel.from_pretrained(encoder).eval()
    reference = reference_of(model)
    monkeypatch.setattr(format_trials, "LOWEST", 0.9999999)
    trials = FormatTrials(model, Heads(), reference, library.KernelLibrary(), "float32")
    assert trials.cosines == {}
    assert trials.advice == ""
