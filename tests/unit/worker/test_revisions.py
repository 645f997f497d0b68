"""`--revision`: which files of a hub id are read. The hub is its library's own cache, with two commits of a model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions, locate
from shared.errors import ModelRefused
from support.tiny import CPU, DENSE, ask, dense_rows, encode, write_encoder, write_pooled

HUB_ID = "someone/a-model"
OLD, NEW = "1" * 40, "2" * 40
TEXTS = [[5, 6, 7], [8, 9]]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits that differ in weights, in the tokenizer and in modules.json; main is the newer one, v1 the older."""
    cache = tmp_path_factory.mktemp("hub")
    repository = cache / "models--someone--a-model"
    (repository / "refs").mkdir(parents=True)
    for name, commit in (("main", NEW), ("v1", OLD)):
        (repository / "refs" / name).write_text(commit)
        folder = repository / "snapshots" / commit
        write_encoder(folder, "tiny-bert")
    old = repository / "snapshots" / OLD
    write_pooled(old, "cls", sentence_bert_config={"max_seq_length": 77})
    weights = old / "model.safetensors"
    save_file(
        {name: tensor * torch.tensor(1.5) for name, tensor in load_file(weights).items()}, weights, {"format": "pt"}
    )
    tokenizer = (old / "tokenizer.json").read_text()
    (old / "tokenizer.json").write_text(tokenizer.replace('"w799"', '"oldword"'))
    return cache


@pytest.fixture(autouse=True)
def _offline(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1 and HF_HUB_CACHE set before the library is imported."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))


def rows(model: Model) -> np.ndarray:
    return dense_rows(ask(ModelEngine(model), encode(DENSE), TEXTS))


def test_a_revision_is_what_is_read(hub: Path) -> None:
    """Weights, pooling, lengths and tokenizer are all of the commit that it names, by branch, tag or hash."""
    newest, old = load(HUB_ID, CPU), load(HUB_ID, CPU, LoadOptions(revision="v1"))
    assert (newest.names, old.names) == (("a-model", HUB_ID), ("a-model", HUB_ID))
    assert (newest.max_tokens, old.max_tokens) == (640, 77)
    assert (b'"oldword"' in newest.tokenizer.content, b'"oldword"' in old.tokenizer.content) == (False, True)
    folder = locate(HUB_ID, False, OLD)
    assert folder == hub / "models--someone--a-model" / "snapshots" / OLD
    same = load(str(folder), CPU)
    assert np.abs(rows(old) - rows(same)).max() < 1e-6
    assert old.fingerprint == same.fingerprint != newest.fingerprint
    assert np.abs(rows(newest) - rows(old)).max() > 0.01


def test_the_hub_is_asked_for_that_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by the list of files, which tells what need not come, and by the download."""
    asked: list[tuple[str, str, Any]] = []

    class Api:
        def model_info(self, name: str, *, revision: str | None, timeout: float) -> SimpleNamespace:
            asked.append(("list", name, revision))
            files = ("model.safetensors", "pytorch_model.bin")
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    def download(name: str, *, revision: str | None, ignore_patterns: list[str], **_: Any) -> str:
        asked.append(("download", name, revision))
        assert "pytorch_model.bin" in ignore_patterns
        raise OSError("no such revision")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelRefused, match="of --revision = 'v2': no such revision"):
        load(HUB_ID, CPU, LoadOptions(revision="v2"))
    with pytest.raises(ModelRefused, match="the hub says: no such revision"):
        load(HUB_ID, CPU)
    assert asked == [(call, HUB_ID, which) for which in ("v2", None) for call in ("list", "download")]


@pytest.mark.parametrize(
    ("name", "revision", "said"),
    [
        (HUB_ID, "v3", "of --revision = 'v3'"),
        ("minilm", "v1", "--revision = 'v1' is for models of the hub, this is in a package"),
        (str(Path(__file__).parent), "v1", "this is a directory"),
    ],
    ids=["not there", "a package", "a directory"],
)
def test_where_there_is_no_such_revision_a_model_is_refused(name: str, revision: str, said: str) -> None:
    with pytest.raises(ModelRefused, match=said):
        load(name, CPU, LoadOptions(revision=revision))
