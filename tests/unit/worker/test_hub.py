"""What `--model` says where it is neither a directory nor to be had from the hub: what it is, in seconds."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.repository import hub
from shared.errors import ModelRefused
from support.tiny import CPU

HUB_ID = "someone/a-model"


class Asked(Exception):
    """The hub was asked."""


@pytest.mark.parametrize("name", ["/no/dir", "./no/dir", "../dir", "~/dir", "no/dir/at-all", "dir/"])
def test_a_path_is_not_asked_of_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", Asked)
    monkeypatch.setattr("huggingface_hub.snapshot_download", Asked)
    with pytest.raises(ModelRefused, match=r"^there is no such directory$"):
        load(name, CPU)


def test_a_file_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is, even where the name could be one of the hub."""
    (tmp_path / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("model.safetensors", str(tmp_path / "model.safetensors")):
        with pytest.raises(ModelRefused, match=r"^it is a file, give its directory$"):
            load(name, CPU)


@pytest.fixture
def silent_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A hub that takes connections and never answers, in place of the real one; nothing was downloaded before."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "SECONDS", 0.1)
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._REGISTRY_FETCH_TIMEOUT", 0.1)  # of a question of its own
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield listener
    listener.close()


def test_a_hub_that_does_not_answer_is_told_after_one_wait(
    silent_hub: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its library would try six times and wait half a minute in between, twice."""
    slept: list[float] = []  # seconds that it sleeps between its tries, which are only counted
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    with pytest.raises(ModelRefused, match=r"no directory here, no files were downloaded earlier, .*: timed out$"):
        load(HUB_ID, CPU)
    assert (slept, caplog.records) == ([], [])
    silent_hub.close()  # from now on connections are refused
    with pytest.raises(ModelRefused, match=r"no files of --revision = 'v1' were .* cannot be reached: .*[Rr]efused"):
        load(HUB_ID, CPU, LoadOptions(revision="v1"))
    assert (slept, caplog.records) == ([], [])
