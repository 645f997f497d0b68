"""Adapters beside each other over one base: each gives the rows that peft gives for it, whatever shares its step."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.kernels.cpu import library
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from gpu_worker.repository.adapters import NamedAdapter
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.piece_limits import adapters_by_fingerprint
from harness.random_models import miniature
from shared.errors import ModelRefused, WorkerUnavailable
from shared.jobs import Job, RaggedTokens
from support.adapted import change_config, change_tensors, peft_rows, write_adapter, write_sentence_model
from support.tiny import CPU, DENSE, dense_rows, ids_of, random_ids, raw, run, write_encoder, write_json

TEXTS = ["w1 w2 w3", "w9 w8 w7 w6 w5 w4", "w11"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": ["query", "value", "dense"], "exclude_modules": ["pooler.dense"]},
    "stabilised": {"use_rslora": True, "r": 5, "target_modules": "all-linear"},
    "trained biases": {"target_modules": ["key", "intermediate.dense"], "bias": "lora_only"},
    "biased": {"lora_bias": True, "layers_to_transform": [1]},
}
pytestmark = pytest.mark.filterwarnings("ignore:Adapter 'default'")  # peft takes biases for broken matrices


@pytest.fixture(scope="module")
def folders(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of the encoder by name."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(root / name, encoder, seed, **options)
        for seed, (name, options) in enumerate(ADAPTERS.items())
    }


@pytest.fixture(scope="module")
def beside(encoder: Path, folders: dict[str, Path]) -> Model:
    """The encoder with all of them."""
    return loaded(encoder, folders)


def loaded(base: Path | str, folders: dict[str, Path], **options: Any) -> Model:
    named = [NamedAdapter(name=name, folder=str(folder)) for name, folder in folders.items()]
    return load(str(base), CPU, LoadOptions(adapters=named, **options))


def engine_of(model: Model) -> ModelEngine:
    engine = ModelEngine(model)
    engine.cut_texts(WHOLE, adapters_by_fingerprint(model, WHOLE))
    return engine


def fingerprints(model: Model) -> dict[str, str]:
    """By name; the base's is "", as in jobs."""
    return {"": ""} | {adapter.names[0]: adapter.fingerprint for adapter in model.adapters}


def rows(model: Model, jobs: Sequence[tuple[str, list[list[int]]]]) -> list[np.ndarray]:
    """Dense rows of each job, of an adapter's name and texts, all in one step."""
    prints = fingerprints(model)
    made = [
        Job(id=number, work=raw(DENSE), tokens=RaggedTokens.of(texts), model=prints[name])
        for number, (name, texts) in enumerate(jobs)
    ]
    return [dense_rows(result) for result in run(engine_of(model), made)]


def test_each_gives_what_peft_gives(beside: Model, encoder: Path, folders: dict[str, Path]) -> None:
    """In one step, next to texts without an adapter."""
    names, ids = ["", *folders], ids_of(beside, TEXTS)
    mixed = dict(zip(names, rows(beside, [(name, ids) for name in names]), strict=True))
    plain = rows(load(str(encoder), CPU), [("", ids)])[0]
    assert np.abs(mixed[""] - plain).max() < 1e-5
    for name, folder in folders.items():
        assert np.abs(mixed[name] - peft_rows(folder, encoder, TEXTS)).max() < 1e-5
        assert np.abs(mixed[name] - plain).max() > 1e-2


@pytest.mark.parametrize("neighbours", [1, 63])
def test_a_text_does_not_depend_on_its_neighbours(beside: Model, neighbours: int) -> None:
    names, text = ["", *ADAPTERS], random_ids([17])
    others = random_ids([1 + number % 40 for number in range(neighbours)], seed=1)
    for name in names:
        alone = rows(beside, [(name, text)])[0]
        jobs = [(names[number % len(names)], [other]) for number, other in enumerate(others)]
        assert np.abs(rows(beside, [*jobs, (name, text)])[-1] - alone).max() < 1e-6


def test_the_card_of_a_model_with_adapters(beside: Model) -> None:
    """It advises no int8, which a worker does not take beside adapters. It promises no same bits: layers run as
    transformers wrote them, and PyTorch multiplies by adapters."""
    card, formats = card_of(beside), library.load().formats
    advice = "may be faster on this processor, and rounded: --dtype bfloat16"
    assert card.formats == (advice if torch.bfloat16 in formats else "")
    assert not card.bitwise_invariant
    assert beside.bits == "may differ in another batch: its layers do not run whole by the processor's kernels"


LAYERS = {"tiny-t5": ["q", "v", "wi"]}
"""T5's own code reads the weight of its last layer, `wo`."""


@pytest.mark.parametrize("shape", ["tiny-mpnet", "tiny-t5", "tiny-modernbert", "tiny-qwen3"])
def test_other_encoders(tmp_path: Path, shape: str) -> None:
    """With relative positions, merged queries and keys, and attention to earlier tokens alone."""
    auto = type(write_encoder(tmp_path / "base", shape))
    folders = {
        str(seed): write_adapter(
            tmp_path / str(seed), tmp_path / "base", seed, auto, target_modules=LAYERS.get(shape, "all-linear")
        )
        for seed in (1, 2)
    }
    model = loaded(tmp_path / "base", folders)
    alone = {name: load(str(folder), CPU) for name, folder in folders.items()}
    ids = random_ids([3, 30, 9])
    for name, served in zip(folders, rows(model, [(name, ids) for name in folders]), strict=True):
        assert np.abs(served - rows(alone[name], [("", ids)])[0]).max() < 1e-5


def test_long_texts_in_pieces_keep_their_adapter(tmp_path: Path) -> None:
    """In steps with pieces and whole texts of others."""
    write_encoder(tmp_path / "base", "tiny-qwen3")
    folders = {
        str(seed): write_adapter(tmp_path / str(seed), tmp_path / "base", seed, target_modules=["q_proj", "down_proj"])
        for seed in (1, 2)
    }
    model = loaded(tmp_path / "base", folders)
    assert not model.whole_texts
    names, ids = ["", "1", "2"], random_ids([100, 7, 64])
    whole = rows(model, [(name, ids) for name in names])
    engine, limits = (
        ModelEngine(model),
        PieceLimits(longest=16, cache_bytes=1 << 30, token_bytes=model.token_bytes),
    )
    engine.cut_texts(limits, adapters_by_fingerprint(model, limits))
    prints = {"": ""} | {each.names[0]: name for name, each in adapters_by_fingerprint(model, limits).items()}
    jobs = [
        Job(id=number, work=raw(DENSE), tokens=RaggedTokens.of(ids), model=prints[name])
        for number, name in enumerate(names)
    ]
    in_pieces = run(engine, jobs, width=1)
    assert engine.pieces > 6
    for served, expected in zip(in_pieces, whole, strict=True):
        assert np.abs(dense_rows(served) - expected).max() < 1e-5


def test_fingerprints(beside: Model, encoder: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    """Two adapters differ, the base differs from all, and keeps the one that it has without adapters."""
    prints = [beside.fingerprint, *(adapter.fingerprint for adapter in beside.adapters)]
    assert len({*prints}) == 5
    assert load(str(encoder), CPU).fingerprint == beside.fingerprint
    again = shutil.copytree(folders["lora"], tmp_path / "lora")
    assert loaded(encoder, {"other name": again}).adapters[0].fingerprint == prints[1]
    change_tensors(again, **{"layer.0.attention.self.query.lora_A": torch.ones(2, 64)})
    assert loaded(encoder, {"lora": again}).adapters[0].fingerprint != prints[1]


def test_prompts_of_its_own(encoder: Path, tmp_path: Path) -> None:
    """And a shorter limit; where its folder has no modules it has the base's."""
    folder = write_sentence_model(tmp_path / "adapter", encoder)
    write_json(
        folder, config_sentence_transformers={"prompts": {"query": "w5 "}}, sentence_bert_config={"max_seq_length": 32}
    )
    bare = write_adapter(tmp_path / "bare", encoder)
    separate, other = loaded(encoder, {"separate": folder, "bare": bare}).adapters
    assert (separate.names, separate.recipe.prompts, separate.max_tokens) == (("separate",), {"query": "w5 "}, 32)
    assert (other.recipe.prompts, other.max_tokens) == ({}, 640)


def test_a_job_for_another_model_is_sent_back(beside: Model) -> None:
    """So that the frontend asks a worker that has it."""
    job = Job(id=1, work=raw(DENSE), tokens=RaggedTokens.of([[11]]), model="another")
    with pytest.raises(WorkerUnavailable, match="no model with the fingerprint 'another'"):
        engine_of(beside).open(job)


def for_another_base(folder: Path, encoder: Path) -> Path:
    write_adapter(folder, encoder)
    change_config(folder, base_model_name_or_path="someone/another-model")
    return folder


REFUSED: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "another form": (partial(write_adapter, use_dora=True), r"^--adapter mine: .*use_dora = True: .*merge_and_unload"),
    "another pooling": (
        partial(write_sentence_model, pooling="cls"),
        r"its dense is .*'cls'.*, the base's is .*'mean'.*serve it alone",
    ),
    "another base": (for_another_base, "it is for the base someone/another-model, this model is"),
    "no adapter": (lambda folder, encoder: encoder, r"--adapter mine: .* holds no adapter_config.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_the_base_is_refused(encoder: Path, tmp_path: Path, case: str) -> None:
    write, said = REFUSED[case]
    with pytest.raises(ModelRefused, match=said):
        loaded(encoder, {"mine": write(tmp_path / "adapter", encoder)})


def test_a_changed_head_is_refused(tmp_path: Path) -> None:
    """Other texts would be scored by it."""
    auto = AutoModelForSequenceClassification
    write_encoder(tmp_path / "base", "tiny-bert", "sequence-classification", labels=3)
    folder = write_adapter(tmp_path / "adapter", tmp_path / "base", auto=auto, target_modules=["query", "classifier"])
    with pytest.raises(ModelRefused, match=r"^--adapter mine: .*it changes classifier, .*serve it alone"):
        loaded(tmp_path / "base", {"mine": folder})


def test_rounded_layers_take_no_adapters(encoder: Path, folders: dict[str, Path]) -> None:
    """The cosine to the base says nothing of theirs."""
    with pytest.raises(ModelRefused, match="--adapter goes with exact linear layers"):
        loaded(encoder, folders, linear="int8")


def test_a_model_that_does_not_run_packed_takes_no_adapters(tmp_path: Path) -> None:
    """It runs texts of one length at a time."""
    miniature.write(tmp_path / "base", "roformer")
    folder = write_adapter(tmp_path / "adapter", tmp_path / "base")
    with pytest.raises(ModelRefused, match="--adapter needs a model that runs packed, this one does not"):
        loaded(tmp_path / "base", {"mine": folder})


def test_a_layer_whose_weight_is_read_is_refused(tmp_path: Path) -> None:
    auto = type(write_encoder(tmp_path / "base", "tiny-t5"))
    folder = write_adapter(tmp_path / "adapter", tmp_path / "base", 1, auto, target_modules=["wo"])
    with pytest.raises(ModelRefused, match=r"--adapter: encoder\.block\.0\..*\.wo is changed, whose weight"):
        loaded(tmp_path / "base", {"mine": folder})


def test_the_gate_refuses_an_adapter_that_an_encoder_does_not_apply(tmp_path: Path) -> None:
    """DeBERTa projects its table of distances by the same layers, once for all texts."""
    write_encoder(tmp_path / "base", "tiny-deberta-v2")
    folder = write_adapter(tmp_path / "adapter", tmp_path / "base", target_modules=["key_proj"])
    with pytest.raises(ModelRefused, match="--adapter mine: it does not run among other texts as"):
        loaded(tmp_path / "base", {"mine": folder})


def test_settings_name_each_adapter() -> None:
    settings = WorkerSettings.read(["--adapter", "one=a/b=c", "--adapter", "two=d/e"])
    assert [dataclasses.astuple(named) for named in settings.named_adapters()] == [("one", "a/b=c"), ("two", "d/e")]


@pytest.mark.parametrize("said", [["one"], ["=a"], ["one="], ["one=a", "one=b"]])
def test_settings_want_a_name_and_a_folder(said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        WorkerSettings.read([argument for adapter in said for argument in ("--adapter", adapter)])
    assert "--adapter" in capsys.readouterr().err
