"""Weights that were rounded before: whole again at load, or refused by the name of their format."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from gpu_worker.model.loading import load
from gpu_worker.repository import rounded_format, rounded_weights
from support.breakages import refusal
from support.rounded import (
    FP8,
    FP8_MATRIX,
    Rounding,
    compressed,
    float_rows,
    fp8_blocks,
    fp8_matrix,
    int8_rows,
    packed,
    write_format,
    write_rounded,
)
from support.tiny import CPU, embed, rows, write_encoder

TEXTS = ["w1 w2 w3", "w9 w8 w7 w6 w5 w4", "w11"]
GROUPS = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=16)
ASYMMETRIC = compressed("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=32)
FORMS: dict[str, tuple[dict[str, Any], Rounding]] = {
    "fp8 in blocks": (FP8, fp8_blocks),
    "fp8 by matrix": (FP8_MATRIX, fp8_matrix),
    "fp8 by row": (compressed("float-quantized", num_bits=8, type="float", strategy="channel"), float_rows),
    "int8 with zeros": (compressed("int-quantized", num_bits=8, type="int", symmetric=False), int8_rows),
    "int4 in groups": (GROUPS, packed(4, 16, zero=False)),
    "int4 in groups with zeros": (ASYMMETRIC, packed(4, 32, zero=True)),
    "int8 packed by row": (compressed("pack-quantized", num_bits=8, type="int"), packed(8, None, zero=True)),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT."""
    folder = tmp_path_factory.mktemp("rounded") / "encoder"
    write_encoder(folder, "tiny")
    return folder


@pytest.fixture(scope="module")
def int8(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its layers as int8; not to be changed."""
    return write_rounded(encoder, tmp_path_factory.mktemp("int8"), *FORMS["int8 with zeros"])[0]


@pytest.mark.parametrize("form", FORMS)
def test_rounded_weights_run_as_whole_ones(encoder: Path, tmp_path: Path, form: str) -> None:
    """The same numbers, stored the one way and the other, give the same rows; the card says what they are."""
    rounded, whole = write_rounded(encoder, tmp_path, *FORMS[form])
    model = load(str(rounded), CPU)
    assert np.abs(rows(model, TEXTS) - embed(whole, TEXTS)).max() < 1e-6
    assert np.abs(embed(whole, TEXTS) - embed(encoder, TEXTS)).max() > 1e-4
    assert "its weights were rounded before" in model.recipe.notice
    assert str(FORMS[form][0].get("format", "fp8")) in model.recipe.notice


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="transformers reads fp8 with accelerate")
def test_fp8_is_read_as_transformers_reads_it(encoder: Path, tmp_path: Path) -> None:
    """The outside reference: on a processor sentence-transformers makes whole weights too."""
    rounded, _ = write_rounded(encoder, tmp_path, {**FP8, "weight_block_size": [16, 32]}, fp8_even)
    expected = SentenceTransformer(str(rounded), device="cpu").encode(TEXTS)
    assert np.abs(embed(rounded, TEXTS) - expected).max() < 1e-5


def fp8_even(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Blocks of 16 x 32, which divide every matrix: transformers reads no others."""
    blocks = weight.reshape(weight.shape[0] // 16, 16, -1, 32)
    scales = blocks.abs().amax((1, 3), keepdim=True) / 448
    rounded = (blocks / scales).to(torch.float8_e4m3fn)
    stored = {"": rounded.reshape(weight.shape), "_scale_inv": scales[:, 0, :, 0]}
    return stored, (rounded.float() * scales).reshape(weight.shape)


def test_shards_and_number_formats(encoder: Path, tmp_path: Path) -> None:
    """Scales may lie in another shard than their weights; a model in bfloat16 gets weights in bfloat16."""
    folder, _ = write_rounded(encoder, tmp_path, *FORMS["int8 with zeros"])
    tensors = load_file(folder / "model.safetensors")
    expected = embed(folder, TEXTS)
    (folder / "model.safetensors").unlink()
    shards = {name: f"part-{int(name.endswith('_scale'))}.safetensors" for name in tensors}
    for shard in set(shards.values()):
        held = {name: tensor for name, tensor in tensors.items() if shards[name] == shard}
        save_file(held, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {' + ", ".join(f'"{name}": "{shard}"' for name, shard in shards.items()) + "}}"
    )
    assert np.array_equal(embed(folder, TEXTS), expected)
    form = rounded_format.RoundedFormat(name="compressed-tensors int-quantized", scale="_scale", blocks=())
    halves = rounded_weights.read(folder, form, torch.bfloat16)
    assert halves["encoder.layer.0.attention.self.query.weight"].dtype is torch.bfloat16


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4},
        "(gptq): such weights are not served, they need the package gptqmodel",
    ),
    "awq": ({"quant_method": "awq", "bits": 4}, "(awq): such weights are not served, they need the package gptqmodel"),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "they need the package bitsandbytes"),
    "torchao": ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "they need the package torchao"),
    "hqq": ({"quant_method": "hqq", "quant_config": {}}, "(hqq)"),
    "quanto": ({"quant_method": "quanto", "weights": "int8"}, "they need the package optimum-quanto"),
    "mxfp4": ({"quant_method": "mxfp4"}, "(mxfp4)"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "they need the package nvidia-modelopt"),
    "MLX": ({"bits": 4, "group_size": 64}, "(mlx)"),
    "of no name": ({"kind": "new"}, "(None): such weights are not served, their format is not known here"),
    "new": ({"quant_method": "ternary"}, "(ternary): such weights are not served, their format is not known here"),
    "nvfp4": (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), "compressed-tensors, nvfp4-pack-quantized"),
    "int2": (compressed("pack-quantized", num_bits=2, type="int"), "int of 2 bits"),
    "rotated": ({**GROUPS, "transform_config": {"config_groups": {"R3": {}}}}, "transform_config"),
    "sparse": ({**GROUPS, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config sparse-24-bitmask"),
    "no groups": ({"quant_method": "compressed-tensors"}, "config_groups must tell how weights are stored"),
    "no block": ({"quant_method": "fp8", "weight_block_size": [0, "x"]}, "must be two whole numbers"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_other_formats_are_refused_by_name(int8: Path, tmp_path: Path, case: str) -> None:
    """In one line that names the file, the format and what to do; before a weight is read."""
    folder = shutil.copytree(int8, tmp_path / "rounded")
    (folder / "model.safetensors").write_bytes(b"not read")
    config, words = FOREIGN[case]
    write_format(folder, config)
    said = refusal(folder)
    assert words in said
    assert f"{folder}/config.json: quantization_config" in said
    assert said.endswith(rounded_format.INSTEAD) or case in ("no groups", "no block")


def test_what_names_no_method_is_told_by_its_key(encoder: Path, tmp_path: Path) -> None:
    """Older compressed-tensors, and MLX."""
    folder, whole = write_rounded(encoder, tmp_path, *FORMS["int4 in groups"])
    write_format(folder, None)
    write_format(folder, {key: value for key, value in GROUPS.items() if key != "quant_method"}, "compression_config")
    assert np.abs(embed(folder, TEXTS) - embed(whole, TEXTS)).max() < 1e-6
    write_format(folder, None, "compression_config")
    write_format(folder, {"bits": 4, "group_size": 64}, "quantization")
    assert "config.json: quantization (mlx): such weights are not served" in refusal(folder)


QUERY = "encoder.layer.0.attention.self.query.weight"


def changed(**parts: torch.Tensor | None) -> Callable[[dict[str, torch.Tensor]], object]:
    """Replaces what is stored of a weight; None takes it away."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for part, content in parts.items():
            tensors.pop(QUERY + part.removeprefix("w"), None)
            if content is not None:
                tensors[QUERY + part.removeprefix("w")] = content

    return change


BROKEN: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "no scales": ("int8 with zeros", changed(w_scale=None), "weight is stored as int8 without scales"),
    "no weight": ("int8 with zeros", changed(w=None), "query.weight is missing, its scales are there"),
    "scales of another shape": ("int8 with zeros", changed(w_scale=torch.ones(7, 1)), "has the shape [7, 1]"),
    "no numbers": ("int8 with zeros", changed(w_scale=torch.full((64, 1), float("nan"))), "must be finite"),
    "infinite": ("int8 with zeros", changed(w_scale=torch.full((64, 1), 3e38)), "holds numbers that are not finite"),
    "whole scales": ("int8 with zeros", changed(w_scale=torch.ones(64, 1, dtype=torch.int8)), "they are int8"),
    "zeros of another shape": (
        "int8 with zeros",
        changed(w_zero_point=torch.ones(3, 5)),
        "zero_point has the shape [3, 5]",
    ),
    "three sides": ("int8 with zeros", changed(w=torch.ones(1, 64, 64, dtype=torch.int8)), "that is no rounded matrix"),
    "words too few": ("int4 in groups", changed(w_packed=torch.ones(64, 7, dtype=torch.int32)), "not that of 64 x 64"),
    "no shape": ("int4 in groups", changed(w_shape=None), "must be a matrix of int32 with its weight_shape"),
    "another order": ("int4 in groups", changed(w_g_idx=torch.zeros(64, dtype=torch.int32)), "actorder"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_by_name(encoder: Path, tmp_path: Path, case: str) -> None:
    """In one line that names the weight."""
    form, change, words = BROKEN[case]
    folder, _ = write_rounded(encoder, tmp_path, *FORMS[form])
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = refusal(folder)
    assert words in said
    assert QUERY in said


def test_rounded_weights_without_a_format_are_refused(int8: Path, tmp_path: Path) -> None:
    """transformers would read their numbers as they are."""
    folder = shutil.copytree(int8, tmp_path / "rounded")
    write_format(folder, None)
    assert "weight is stored as I8, and config.json has no quantization_config that tells its format" in refusal(folder)


ACTIVATIONS = {"targets": ["LinearAttention"], "weights": None, "input_activations": {"num_bits": 8, "type": "float"}}


@pytest.mark.parametrize("groups", [{}, {"group_0": ACTIVATIONS}], ids=["the cache alone", "activations alone"])
def test_whole_weights_of_compressed_tensors_are_whole(
    encoder: Path, int8: Path, tmp_path: Path, groups: dict[str, Any]
) -> None:
    """Where no group rounds weights the model is as any other; rounded weights are refused there."""
    config = {**compressed("dense", num_bits=8), "config_groups": groups, "kv_cache_scheme": {"num_bits": 8}}
    folder = shutil.copytree(encoder, tmp_path / "whole")
    write_format(folder, config)
    model = load(str(folder), CPU)
    assert np.array_equal(rows(model, TEXTS), embed(encoder, TEXTS))
    assert "rounded" not in model.recipe.notice
    folder = shutil.copytree(int8, tmp_path / "rounded")
    write_format(folder, config)
    assert "weight is stored as I8, and config.json has no quantization_config that tells its format" in refusal(folder)


def test_a_pickle_is_not_read_for_rounded_weights(int8: Path, tmp_path: Path) -> None:
    """Scales and weights are read from safetensors alone."""
    folder = shutil.copytree(int8, tmp_path / "rounded")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors: rounded weights" in refusal(folder)
