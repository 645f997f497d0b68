"""Checkpoints that were quantised before they were published are refused, whatever their format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.breakages import refusal, settings, whole_repository
from support.tiny import embed

NAMED: dict[str, tuple[dict[str, Any], str]] = {
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


@pytest.mark.parametrize("case", NAMED)
def test_a_quantised_checkpoint_is_refused_by_the_name_of_its_format(folder: Path, case: str) -> None:
    """In one line that says what to do; before a weight is read."""
    said, name = NAMED[case]
    (folder / "model.safetensors").write_bytes(b"not read")
    settings("config.json", quantization_config=said)(folder)
    assert refusal(folder) == (
        f"{folder}/config.json: quantization_config ({name}): quantised weights are not served; serve the checkpoint "
        "that they were made from; --dtype int8 rounds its layers at load"
    )


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("Qwen/Qwen3-Embedding-0.6B", "made from (_name_or_path: Qwen/Qwen3-Embedding-0.6B); --dtype"),
        ("/home/somebody/model", "made from; --dtype"),
        ("./model", "made from; --dtype"),
        (["Qwen/Qwen3-Embedding-0.6B"], "made from; --dtype"),
    ],
)
def test_the_refusal_names_the_model_that_config_json_names(folder: Path, named: Any, told: str) -> None:
    """A path on another machine helps nobody."""
    settings("config.json", quantization_config={"quant_method": "fp8"}, _name_or_path=named)(folder)
    assert told in refusal(folder)


@pytest.mark.parametrize("key", ["compression_config", "quantization"])
def test_older_keys_count(folder: Path, key: str) -> None:
    settings("config.json", **{key: {"bits": 4, "group_size": 64}})(folder)
    assert f"config.json: {key} (no quant_method): quantised weights are not served" in refusal(folder)


def test_a_part_of_the_config_counts(folder: Path) -> None:
    """transformers reads the key of the texts' part too."""
    settings("config.json", text_config={"quantization_config": {"quant_method": "fp8"}})(folder)
    assert "quantization_config (fp8): quantised weights are not served" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_weights_without_a_format_are_refused(folder: Path, dtype: torch.dtype) -> None:
    """transformers would take their numbers as they are."""
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    save_file(tensors | {name: tensors[name].to(dtype)}, folder / "model.safetensors", metadata={"format": "pt"})
    kind = {torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3"}[dtype]
    assert f"{name} is stored as {kind}: quantised weights are not served" in refusal(folder)


def test_a_key_that_says_nothing_changes_nothing(encoder: Path, folder: Path) -> None:
    settings("config.json", quantization_config=None)(folder)
    assert np.array_equal(embed(folder, ["w1 w2"]), embed(encoder, ["w1 w2"]))


def test_a_quantised_weight_of_a_head_is_refused(encoder: Path, tmp_path: Path) -> None:
    """It lies in a file that transformers does not read."""
    file = whole_repository(encoder, tmp_path / "model") / "2_Dense" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"linear.weight": tensors["linear.weight"].to(torch.int8)}, file)
    said = "linear.weight is stored as torch.int8: quantised weights are not served"
    assert said in refusal(tmp_path / "model")
