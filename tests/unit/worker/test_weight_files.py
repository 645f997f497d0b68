"""Files of weights that are missing, cut short, pointers, pickles or quantised before they were published: refused by
name; nothing is executed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.breakages import Poison, refusal, settings, text
from support.tiny import assert_as_the_reference, embed, split_weights

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "2_Dense/model.safetensors"])
def test_a_pointer_in_place_of_a_file_is_told(whole: Path, name: str) -> None:
    """What `git clone` leaves without Git LFS, with what to do."""
    text(name, POINTER)(whole)
    assert f"{name} is a pointer of Git LFS, not the file: `git lfs pull` fetches it" in refusal(whole)


def test_weights_that_nothing_loads_may_be_anything(whole: Path) -> None:
    """Those of another number format, which nobody fetched; the reference serves the rest of the folder."""
    for name, content in (("consolidated", POINTER), ("model.fp16", "cut short"), ("adapter_model", POINTER)):
        text(f"{name}.safetensors", content)(whole)
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


PICKLES = [
    *("pytorch_model.bin", "pytorch_model-00002-of-00003.bin", "2_Dense/pytorch_model.bin"),
    *("colbert_linear.pt", "sparse_linear.pt"),
]


@pytest.mark.parametrize("name", PICKLES)
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


def test_a_pickle_of_something_else_is_refused(whole: Path) -> None:
    torch.save([torch.ones(1)], whole / "colbert_linear.pt")
    assert "colbert_linear.pt holds something else than tensors by name" in refusal(whole)


FORMATS: dict[str, tuple[dict[str, Any], str]] = {
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    "compressed-tensors": ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
    "gptq": ({"quant_method": "gptq", "bits": 4}, "gptq"),
    "awq": ({"quant_method": "awq", "bits": 4}, "awq"),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
    "a format that nobody knows": ({"quant_method": "ternary"}, "ternary"),
    "a name of two lines": ({"quant_method": "new\nformat"}, "new format"),
    "no name": ({"bits": 4}, "no quant_method"),
    "nothing": ({}, "no quant_method"),
}


@pytest.mark.parametrize("case", FORMATS)
def test_a_quantised_checkpoint_is_refused_by_the_name_of_its_format(folder: Path, case: str) -> None:
    """In one line that says what to do; before a weight is read."""
    config, name = FORMATS[case]
    (folder / "model.safetensors").write_bytes(b"not read")
    settings("config.json", quantization_config=config)(folder)
    assert refusal(folder) == (
        f"{folder}/config.json: quantization_config ({name}): quantised weights are not served; serve the checkpoint "
        "that they were made from; --dtype int8 rounds its layers at load"
    )


FP8 = {"quantization_config": {"quant_method": "fp8"}}
OTHER_KEYS: list[tuple[dict[str, Any], str]] = [
    (FP8 | {"_name_or_path": "Qwen/Qwen3"}, "made from (_name_or_path: Qwen/Qwen3); --dtype"),
    (FP8 | {"_name_or_path": "/home/somebody/model"}, "made from; --dtype"),
    (FP8 | {"_name_or_path": "./model"}, "made from; --dtype"),
    (FP8 | {"_name_or_path": ["Qwen/Qwen3"]}, "made from; --dtype"),
    ({"text_config": FP8}, "quantization_config (fp8): quantised weights are not served"),
    ({"compression_config": {"bits": 4}}, "compression_config (no quant_method): quantised weights are not served"),
    ({"quantization": {"bits": 4}}, "quantization (no quant_method): quantised weights are not served"),
]


@pytest.mark.parametrize(("config", "words"), OTHER_KEYS, ids=[str(config) for config, _ in OTHER_KEYS])
def test_older_keys_and_parts_of_the_config_count(folder: Path, config: dict[str, Any], words: str) -> None:
    """The refusal names the model that config.json names; a path on another machine helps nobody."""
    settings("config.json", **config)(folder)
    assert words in refusal(folder)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_quantised_weights_without_a_format_are_refused(folder: Path, dtype: torch.dtype, kind: str) -> None:
    """transformers would take their numbers as they are."""
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    save_file(tensors | {name: tensors[name].to(dtype)}, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"{name} is stored as {kind}: quantised weights are not served" in refusal(folder)


def test_a_key_that_says_nothing_changes_nothing(encoder: Path, folder: Path) -> None:
    settings("config.json", quantization_config=None)(folder)
    assert np.array_equal(embed(folder, ["w1 w2"]), embed(encoder, ["w1 w2"]))


def test_a_quantised_weight_of_a_head_is_refused(whole: Path) -> None:
    """It lies in a file that transformers does not read."""
    file = whole / "2_Dense" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"linear.weight": tensors["linear.weight"].to(torch.int8)}, file)
    assert "linear.weight is stored as torch.int8: quantised weights are not served" in refusal(whole)
