"""Folders of listwise rerankers: what of them counts in the fingerprint, how windows are told, and what is refused."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from gpu_worker.repository import rerankers
from support import listwise
from support.breakages import refusal, settings
from support.listwise import HIDDEN

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return listwise.write(tmp_path_factory.mktemp("listwise") / "tiny", max_position_embeddings=2304)


def _tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Changes the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _without_marker(folder: Path) -> None:
    """Another name for one of the markers, everywhere."""
    for file in folder.glob("*token*.json"):
        file.write_text(file.read_text().replace("<|rerank_token|>", "<|another_token|>"))


def _marker_as_words(folder: Path) -> None:
    """A marker that is a token of the vocabulary, and that the tokenizer splits into others."""
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"single_word": false', '"single_word": true'))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no projector": (
        partial(_tensors, change=lambda tensors: tensors.pop("projector.2.weight")),
        "has no projector.2.weight",
    ),
    "a wide projector": (
        partial(_tensors, change=lambda tensors: tensors.update({"projector.0.weight": torch.ones(HIDDEN, HIDDEN)})),
        "projector.0.weight has the shape [64, 64], its place wants [32, 64]",
    ),
    "a projector with a bias": (
        partial(_tensors, change=lambda tensors: tensors.update({"projector.0.bias": torch.ones(HIDDEN // 2)})),
        "holds projector.0.bias, and the layer has no bias in the model's own code",
    ),
    "no layer": (
        partial(_tensors, change=lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
        "lacks layers.1.mlp.up_proj.weight",
    ),
    "no marker": (_without_marker, "its tokenizer has no token <|rerank_token|>"),
    "a marker that is split": (_marker_as_words, "its tokenizer splits <|embed_token|>"),
    "another decoder": (settings("config.json", model_type="llama"), "model_type 'llama', not qwen3"),
    "no room": (settings("tokenizer_config.json", model_max_length=100), "its block and a word of each text take"),
}


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, (1024, 8192)),
        ({"use_sliding_window": True, "max_window_layers": 2, "num_hidden_layers": 3}, (1024, 8192)),
        ({"use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 3}, (512, 2048)),
        ({"use_sliding_window": True, "num_hidden_layers": 28}, (512, 2048)),
        ({"use_sliding_window": False, "max_window_layers": 0, "num_hidden_layers": 3}, (512, 2048)),
        ({"layer_types": ["full_attention"] * 2, "use_sliding_window": True, "max_window_layers": 0}, (512, 2048)),
    ],
)
def test_windows_are_those_of_transformers(tmp_path: Path, config: dict[str, Any], limits: tuple[int, int]) -> None:
    layers = {"num_hidden_layers": 2} | config
    assert ("sliding_attention" in Qwen3Config(**layers).layer_types) == (limits == (1024, 8192))
    read = rerankers.read_listwise(tmp_path, {"model_type": "qwen3", "hidden_size": 8} | layers)["listwise"]
    assert (read.query_length, read.document_length) == limits


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_folder_is_refused_by_name(folder: Path, tmp_path: Path, bad: str) -> None:
    broken = shutil.copytree(folder, tmp_path / "tiny")
    change, named = BAD[bad]
    change(broken)
    assert named in refusal(broken)
