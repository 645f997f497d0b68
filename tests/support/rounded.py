"""Writes folders with weights that were rounded before, number by number, beside the same model with whole weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Rounding = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
"""A weight [O, I] -> what is stored of it, by the end of its name; and the whole weight that it stands for."""
FP8 = {"quant_method": "fp8", "weight_block_size": [16, 48]}
FP8_MATRIX = {"quant_method": "fp8", "weight_block_size": None}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """A config of compressed-tensors with one group of layers."""
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def fp8_blocks(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Blocks of 16 rows and 48 columns; the last block of a row is narrower."""
    rows, columns = weight.shape
    stored, whole = torch.empty_like(weight).to(torch.float8_e4m3fn), torch.empty_like(weight)
    scales = torch.empty(-(-rows // 16), -(-columns // 48))
    for row in range(0, rows, 16):
        for column in range(0, columns, 48):
            block = weight[row : row + 16, column : column + 48]
            scale = block.abs().max() / 448
            rounded = (block / scale).to(torch.float8_e4m3fn)
            stored[row : row + 16, column : column + 48] = rounded
            whole[row : row + 16, column : column + 48] = rounded.float() * scale
            scales[row // 16, column // 48] = scale
    return {"": stored, "_scale_inv": scales}, whole


def fp8_matrix(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """One scale for all, as a number."""
    scale = weight.abs().max() / 448
    rounded = (weight / scale).to(torch.float8_e4m3fn)
    return {"": rounded, "_scale_inv": scale}, rounded.float() * scale


def float_rows(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A scale a row, in bfloat16."""
    scales = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    rounded = (weight / scales.float()).to(torch.float8_e4m3fn)
    return {"": rounded, "_scale": scales}, rounded.float() * scales.float()


def int8_rows(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A scale and a zero a row."""
    least, most = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    scales = (most - least) / 255
    zeros = (-128 - least / scales).round().clamp(-128, 127)
    rounded = (weight / scales + zeros).round().clamp(-128, 127)
    parts = {"": rounded.to(torch.int8), "_scale": scales, "_zero_point": zeros.to(torch.int8)}
    return parts, (rounded - zeros) * scales


def packed(bits: int, group: int | None, zero: bool) -> Rounding:
    """Numbers of `bits` in int32, with a scale for every `group` columns of a row, or for the row."""
    half = 2 ** (bits - 1)

    def rounding(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows, columns = weight.shape
        width = group or columns
        numbers, whole = np.zeros((rows, columns), dtype=np.int64), torch.empty_like(weight)
        scales, zeros = torch.empty(rows, columns // width), np.zeros((rows, columns // width), dtype=np.int64)
        for row in range(rows):
            for place in range(columns // width):
                part = slice(place * width, (place + 1) * width)
                scale = float(weight[row, part].abs().max()) / (half - 1)
                shift = (row + place) % 3 - 1 if zero else 0
                taken = (weight[row, part] / scale + shift).round().clamp(-half, half - 1)
                numbers[row, part], scales[row, place], zeros[row, place] = taken.numpy(), scale, shift
                whole[row, part] = (taken - shift) * scales[row, place]
        parts = {"_packed": _words(numbers, bits), "_scale": scales, "_shape": torch.tensor([rows, columns])}
        if zero:
            parts["_zero_point"] = _words(zeros.T, bits).T.contiguous()
        return parts, whole

    return rounding


def _words(numbers: np.ndarray, bits: int) -> Tensor:
    """Rows of numbers in words of 32 bits, the first in the lowest ones."""
    a_word = 32 // bits
    words = np.zeros((len(numbers), -(-numbers.shape[1] // a_word)), dtype=np.int64)
    for row, line in enumerate(numbers):
        for place, number in enumerate(line):
            words[row, place // a_word] |= (int(number) + 2 ** (bits - 1)) << (bits * (place % a_word))
    return torch.from_numpy(words.astype(np.uint32).astype(np.int32))


def write_rounded(encoder: Path, folder: Path, config: dict[str, Any], rounding: Rounding) -> tuple[Path, Path]:
    """Copies of an encoder: with the linear layers of its blocks rounded, and with their numbers as whole weights."""
    rounded_folder, whole_folder = folder / "rounded", folder / "whole"
    for copied in (rounded_folder, whole_folder):
        shutil.copytree(encoder, copied)
    stored: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    for name, tensor in load_file(encoder / "model.safetensors").items():
        layer = tensor.dim() == 2 and "embed" not in name
        parts, whole[name] = rounding(tensor) if layer else ({"": tensor}, tensor)
        stored |= {name + part: content.contiguous() for part, content in parts.items()}
    save_file(stored, rounded_folder / "model.safetensors", metadata={"format": "pt"})
    save_file(whole, whole_folder / "model.safetensors", metadata={"format": "pt"})
    write_format(rounded_folder, config)
    return rounded_folder, whole_folder


def write_format(folder: Path, config: dict[str, Any] | None, key: str = "quantization_config") -> None:
    """Sets what config.json says of the format of the weights, or takes it away."""
    file = folder / "config.json"
    said = json.loads(file.read_text())
    said.pop(key, None)
    file.write_text(json.dumps(said | ({key: config} if config is not None else {})))
