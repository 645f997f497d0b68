"""Files of weights that are missing, cut short, pointers or pickles: refused by name; nothing is executed."""

from pathlib import Path

import pytest
import torch

from support.breakages import Poison, refusal, text
from support.tiny import assert_as_the_reference, split_weights

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "2_Dense/model.safetensors"])
def test_a_pointer_in_place_of_a_file_is_told(whole: Path, name: str) -> None:
    """What `git clone` leaves without Git LFS, with what to do."""
    text(name, POINTER)(whole)
    assert f"{name} is a pointer of Git LFS, not the file: `git lfs pull` fetches it" in refusal(whole)


@pytest.mark.parametrize("name", ["consolidated.safetensors", "model.fp16.safetensors", "adapter_model.safetensors"])
@pytest.mark.parametrize("content", [POINTER, "cut short"], ids=["a pointer", "broken"])
def test_weights_that_nothing_loads_may_be_anything(whole: Path, name: str, content: str) -> None:
    """Those of another number format, which nobody fetched; the reference serves the rest of the folder."""
    text(name, content)(whole)
    assert_as_the_reference(whole, ["w1 w2 w3"])


@pytest.mark.parametrize("name", ["pytorch_model.bin", "2_Dense/pytorch_model.bin", "sparse_linear.pt"])
def test_no_refusal_advises_to_run_a_pickle(whole: Path, name: str) -> None:
    if name.endswith("pytorch_model.bin"):
        (whole / name).with_name("model.safetensors").unlink()
    torch.save({"a": Path()}, whole / name)
    said = refusal(whole)
    assert f"{name}: the weights" in said or f"{name} cannot be read as plain tensors" in said
    assert "it is no file of tensors by name alone" in said
    assert "weights_only" not in said


@pytest.mark.parametrize(("suffix", "stem"), [(".safetensors", "model"), (".bin", "pytorch_model")])
def test_a_shard_that_is_missing_or_a_pointer_is_named(whole: Path, suffix: str, stem: str) -> None:
    """By its file, and by the index that wants it."""
    split_weights(whole, suffix)
    shard = whole / f"{stem}-00002-of-00003{suffix}"
    shard.write_text(POINTER)
    assert f"{shard} is a pointer of Git LFS" in refusal(whole)
    shard.unlink()
    assert f"{shard} is missing; {stem}{suffix}.index.json names it" in refusal(whole)


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "pytorch_model-00002-of-00003.bin",
        "2_Dense/pytorch_model.bin",
        "colbert_linear.pt",
        "sparse_linear.pt",
    ],
)
def test_code_in_a_pickle_is_not_executed(whole: Path, tmp_path: Path, name: str) -> None:
    """Wherever a pickle may lie: refused by its name, and its code has not run."""
    written = tmp_path / "executed"
    if name.endswith("00003.bin"):
        split_weights(whole, ".bin")
    elif name.endswith(".bin"):
        (whole / name).with_name("model.safetensors").unlink()
    torch.save({"weight": torch.ones(1), "linear.weight": Poison(written)}, whole / name)
    said = refusal(whole)
    assert not written.exists()
    assert str(whole if name.startswith("pytorch_model") else whole / name) in said


def test_the_poison_works(tmp_path: Path) -> None:
    """Negative control: read without care, it does what it says."""
    torch.save({"weight": Poison(tmp_path / "executed")}, tmp_path / "poison.pt")
    torch.load(tmp_path / "poison.pt", weights_only=False)
    assert (tmp_path / "executed").read_text() == "executed"


def test_a_pickle_of_something_else_is_refused(whole: Path) -> None:
    torch.save([torch.ones(1)], whole / "colbert_linear.pt")
    assert "colbert_linear.pt holds something else than tensors by name" in refusal(whole)
