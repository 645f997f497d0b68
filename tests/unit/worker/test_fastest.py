"""`--dtype fastest`: the fastest format whose vectors are near enough to those of the model's own float32 run."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from embedded.options import settings_of
from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model import format_trials, loading
from gpu_worker.model.card import card_of
from gpu_worker.model.fastest import load_fastest
from gpu_worker.model.format_judge import FormatJudge
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune import format_speeds
from gpu_worker.model.verify.probes import Probes
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import load_model
from shared.errors import ModelRefused
from support.native import LIBRARY, needs_int8, no_kernels
from support.tiny import CPU, DENSE, ask, dense_rows, raw

HALF = {"float32": 2.0, "bfloat16": 1.0}
EIGHT = HALF | {"int8": 0.5}


@pytest.fixture(autouse=True)
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Of this processor, as far as loads know; a test may change them."""
    made = dict(HALF)
    monkeypatch.setattr(format_speeds, "product_seconds", lambda _: made)
    return made


def chosen(*arguments: str, model: str = "random:tiny-bert") -> Model:
    flags = ["--model", model, "--device", "cpu", "--dtype", "fastest", *arguments]
    return load_model(WorkerSettings.read(flags))


def test_a_low_bound_takes_the_fastest() -> None:
    """As `--dtype` would have made it: the same card, fingerprint and numbers."""
    model, named = chosen("--least-cosine", "0.9"), load("random:tiny-bert", Placement.choose("cpu", "bfloat16"))
    assert card_of(model).dtype == "bfloat16"
    assert model.fingerprint == named.fingerprint != load("random:tiny-bert", CPU).fingerprint
    texts = [[7, 9, 11], [5] * 30]
    mine, theirs = (dense_rows(ask(ModelEngine(each), raw(DENSE), texts)) for each in (model, named))
    assert np.array_equal(mine, theirs)
    assert card_of(model).formats.startswith(
        "bfloat16: the fastest format here whose cosines to float32 are at least 0.9, cosine 0.99"
    )


def test_a_high_bound_takes_float32() -> None:
    """The line says what the faster one would have kept."""
    model, usual = chosen("--least-cosine", "0.99999999"), load("random:tiny-bert", CPU)
    assert card_of(model).dtype == "float32"
    assert model.fingerprint == usual.fingerprint
    assert "are at least 0.99999999; bfloat16: cosine 0.99" in card_of(model).formats


def test_the_usual_choice_does_not_depend_on_speeds() -> None:
    """--dtype auto is float32 on a processor; the bound of 0.999 is for fastest alone."""
    assert card_of(load_model(WorkerSettings.read(["--model=random:tiny-bert", "--device=cpu"]))).dtype == "float32"
    assert WorkerSettings.read([]).least_cosine == 0.999


def test_a_format_that_is_not_clearly_faster_is_not_loaded(
    speeds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One load, in float32."""
    speeds["bfloat16"] = 1.9
    loads: list[torch.dtype] = []

    def counted(name: str, placement: Placement, **options: Any) -> Model:
        loads.append(placement.dtype)
        return load(name, placement, **options)

    model = load_fastest(partial(counted, "random:tiny-bert"), CPU, 0.9)
    assert loads == [torch.float32]
    assert model.formats == "float32: the fastest format here whose cosines to float32 are at least 0.9"


def test_what_serves_is_judged_by_transformers_own_vectors(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least cosine over all texts of the gate: the engine's rows to the class's own in float32."""
    made: list[Probes] = []
    usual = Probes.of

    def kept(*arguments: Any) -> Probes:
        made.append(usual(*arguments))
        return made[-1]

    monkeypatch.setattr(loading.Probes, "of", kept)
    judge = FormatJudge(least=0.5)
    load(str(encoder), CPU, judge=judge)
    judge.format = "bfloat16"
    model = load(str(encoder), Placement.choose("cpu", "bfloat16"), judge=judge)
    texts = [text.tolist() for text in made[0].texts]
    assert all(np.array_equal(mine, other) for mine, other in zip(made[0].texts, made[1].texts, strict=True))
    own = AutoModel.from_pretrained(encoder).eval()
    with torch.inference_mode():
        exact = [own(input_ids=torch.tensor([text])).last_hidden_state[0].mean(dim=0).numpy() for text in texts]
    rows = dense_rows(ask(ModelEngine(model), raw(DENSE), texts))
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(exact, axis=1)
    assert judge.cosines["bfloat16"] == pytest.approx(((rows * exact).sum(axis=1) / norms).min(), abs=1e-6)


def test_what_serves_is_judged_not_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that says 1 does not let a format serve that is not near enough; float32 is loaded again."""
    monkeypatch.setattr(format_trials, "trial_cosines", lambda *_: {"bfloat16": 1.0})
    model = chosen("--least-cosine", "0.9999999")
    assert card_of(model).dtype == "float32"
    assert "bfloat16: cosine 0.99" in model.formats
    assert "wanted is --least-cosine = 0.9999999" in model.formats


def test_a_model_that_is_not_tried_is_loaded_in_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one passes."""
    monkeypatch.setattr(format_trials, "MOST_WEIGHTS", 1000)
    assert card_of(chosen("--least-cosine", "0.99")).dtype == "bfloat16"
    assert card_of(chosen("--least-cosine", "0.9999999")).dtype == "float32"


def test_a_format_that_the_gate_refuses_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is on the card."""

    def picky(name: str, placement: Placement, **options: Any) -> Model:
        if placement.dtype != torch.float32:
            raise ModelRefused("it has moods")
        return load(name, placement, **options)

    model = load_fastest(partial(picky, "random:tiny-bert"), CPU, 0.9)
    assert card_of(model).formats.endswith("at least 0.9; bfloat16: it has moods")


@pytest.mark.parametrize("name", ["tiny-classifier", "tiny-splade", "tiny-colbert", "tiny-qwen3"])
def test_every_kind_of_head_is_judged(name: str) -> None:
    """By its vectors, its token vectors, its hidden states and its logits."""
    assert card_of(chosen("--least-cosine", "0.9", model=f"random:{name}")).dtype == "bfloat16"
    assert card_of(chosen("--least-cosine", "0.9999999", model=f"random:{name}")).dtype == "float32"


@needs_int8
def test_int8_is_chosen_where_it_is_fastest(speeds: dict[str, float]) -> None:
    """With numbers in bfloat16 between its layers where that is fast too; else the next format serves."""
    speeds |= EIGHT
    assert card_of(chosen("--least-cosine", "0.9998", model="random:tiny-roberta")).linear != "int8 by token"
    if torch.bfloat16 in LIBRARY.formats:
        eight = chosen("--least-cosine", "0.9", model="random:tiny-roberta")
        assert (card_of(eight).linear, card_of(eight).dtype) == ("int8 by token", "bfloat16")
    speeds["bfloat16"] = 3.0
    eight = chosen("--least-cosine", "0.9", model="random:tiny-roberta")
    assert (card_of(eight).linear, card_of(eight).dtype) == ("int8 by token", "float32")


def test_int8_that_the_processor_has_not_is_passed_over(
    speeds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the speeds say."""
    speeds |= EIGHT
    no_kernels(monkeypatch, "none are built")
    monkeypatch.setattr(format_trials, "MOST_WEIGHTS", 1000)
    model = chosen("--least-cosine", "0.9")
    assert card_of(model).dtype == "bfloat16"
    assert "int8: --linear = 'int8': this processor has no int8 products" in model.formats


def test_without_kernels_float32_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says what is missing."""
    monkeypatch.undo()
    no_kernels(monkeypatch, "none are built; build them")
    model = chosen("--least-cosine", "0.5")
    assert card_of(model).dtype == "float32"
    assert model.formats.startswith("float32: no other format was measured")
    assert model.formats.endswith("none are built; build them")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--dtype=fastest", "--least-cosine=1.5"], "--least-cosine = '1.5'"),
        (["--dtype=fastest", "--least-cosine=0"], "--least-cosine = '0'"),
        (["--dtype=fastest", "--least-cosine=nan"], "--least-cosine = 'nan'"),
        (["--dtype=fastest", "--least-cosine=near"], "--least-cosine = 'near'"),
        (["--dtype=quickest"], "--dtype = 'quickest'"),
        (["--least-cosine=0.9"], "--least-cosine is for --dtype fastest, this is --dtype auto"),
        (["--dtype=bfloat16", "--least-cosine=0.9"], "--least-cosine is for --dtype fastest, this is --dtype bfloat16"),
        (["--dtype=fastest", "--linear=int8"], "--dtype fastest chooses linear layers too, and goes with no --linear"),
    ],
)
def test_bad_values_stop_the_start(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Naming key and value."""
    with pytest.raises(SystemExit) as raised:
        WorkerSettings.read(arguments)
    assert raised.value.code == 2
    assert expected in capsys.readouterr().err


def test_an_accelerator_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is read; what it has instead is named."""
    placed = torch.empty(0, device="meta")
    monkeypatch.setattr(torch, "empty", lambda *_, **__: placed)
    with pytest.raises(ModelRefused, match=r"--dtype = 'fastest': it is for processors, this is meta; .* --linear fp8"):
        Placement.choose("cuda", "fastest")


def test_an_engine_has_it_too() -> None:
    """With the worker's rules, in the same words."""
    settings = settings_of("random:tiny-bert", {"dtype": "fastest", "least_cosine": 0.9, "device": "cpu"})
    assert card_of(load_model(settings)).dtype == "bfloat16"
    with pytest.raises(ValueError, match=r"^--least-cosine is for --dtype fastest, this is --dtype auto$"):
        settings_of("random:tiny-bert", {"least_cosine": 0.9})
    with pytest.raises(ValueError, match=r"^least_cosine = 2: Input should be less than or equal to 1$"):
        settings_of("random:tiny-bert", {"dtype": "fastest", "least_cosine": 2})
