"""Makes whole weights of rounded ones: numbers times their scales, in float32.

It follows what transformers (`Fp8Dequantize`) and the package compressed-tensors (0.20) do, and needs neither.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from gpu_worker.repository.files import read_tensors, safe_files
from gpu_worker.repository.rounded_format import RoundedFormat
from shared.errors import ModelRefused

WORD = 32
"""Bits of an int32, into which smaller numbers are packed, the first in the lowest bits."""
PARTS = ("_packed", "_shape", "_zero_point", "_g_idx")
"""What compressed-tensors adds to `weight` for a rounded weight, besides its scales."""
ROUNDED = {torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2}
ROUNDED_NAMES = {"I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F4"}
"""Types of rounded weights in a safetensors file."""
WEIGHT_NAMES = ("weight", "weight_packed", "qweight")


def read(folder: Path, form: RoundedFormat, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a model by name, every rounded weight made whole, in `dtype`. Raises ModelRefused."""
    stored: dict[str, Tensor] = {}
    for file in safe_files(folder):
        stored |= read_tensors(file)
    if not stored:
        raise ModelRefused(
            f"{folder} has no model.safetensors: rounded weights ({form.name}) are read from no other file"
        )
    for scales in sorted(name for name in stored if name.endswith(f".weight{form.scale}")):
        weight = scales.removesuffix(form.scale)
        parts = {part: stored.pop(weight + part, None) for part in PARTS}
        rounded, scale = stored.pop(weight, None), stored.pop(scales)
        whole = _whole(rounded, scale, parts, form, f"{folder}: {weight}")
        stored[weight] = whole.to(dtype)
    for name, tensor in stored.items():
        if tensor.dtype in ROUNDED and tensor.dim() > 1:
            raise ModelRefused(f"{folder}: {name} is stored as {_name(tensor)} without scales ({form.name})")
    return stored


def check_whole(folder: Path) -> None:
    """Raises ModelRefused for a rounded weight where config.json tells no format: it would be read as it is."""
    for file in safe_files(folder):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                kind = stored.get_slice(name).get_dtype() if name.endswith(WEIGHT_NAMES) else ""
                if kind in ROUNDED_NAMES:
                    raise ModelRefused(
                        f"{file}: {name} is stored as {kind}, and config.json has no quantization_config that tells "
                        "its format"
                    )


def _whole(
    rounded: Tensor | None, scale: Tensor, parts: dict[str, Tensor | None], form: RoundedFormat, place: str
) -> Tensor:
    """One weight [O, I] in float32. `place` names it in a refusal."""
    packed, shape, zero, order = (parts[part] for part in PARTS)
    if order is not None:
        raise ModelRefused(f"{place}_g_idx: columns in an order of activations (actorder) are not served")
    bits = 8
    if packed is not None:
        if shape is None or packed.dtype != torch.int32 or packed.dim() != 2 or shape.numel() != 2:
            raise ModelRefused(f"{place}_packed must be a matrix of int32 with its weight_shape")
        rows, columns = (int(side) for side in shape)
        bits = _bits(packed, rows, columns, place)
        rounded = _unpacked(packed, bits, columns)
    if rounded is None:
        raise ModelRefused(f"{place} is missing, its scales are there")
    if rounded.dim() != 2 or not (packed is not None or rounded.dtype in ROUNDED - {torch.int32, torch.uint8}):
        raise ModelRefused(
            f"{place} has the shape {list(rounded.shape)} in {_name(rounded)}: that is no rounded matrix"
        )
    if not scale.is_floating_point() or not bool(torch.isfinite(scale.float()).all()):
        raise ModelRefused(f"{place}{form.scale} must be finite floating-point numbers, they are {_name(scale)}")
    rows, columns = rounded.shape
    numbers = rounded.float()
    if zero is not None:
        if zero.dtype == torch.int32 and packed is not None:  # packed down the rows
            words = -(-rows * bits // WORD)
            if zero.dim() != 2 or zero.shape[0] != words:
                raise ModelRefused(
                    f"{place}_zero_point has the shape {list(zero.shape)}, {rows} rows are packed into {words}"
                )
            zero = _unpacked(zero.T, bits, rows).T
        numbers = numbers - _spread(zero.float(), rows, columns, form, f"{place}_zero_point")
    whole = numbers * _spread(scale.float(), rows, columns, form, f"{place}{form.scale}")
    if not bool(torch.isfinite(whole).all()):
        raise ModelRefused(f"{place} holds numbers that are not finite")
    return whole


def _bits(packed: Tensor, rows: int, columns: int, place: str) -> int:
    """How many bits a number has: 4 or 8, as the shapes say."""
    for bits in (4, 8):
        if list(packed.shape) == [rows, -(-columns * bits // WORD)]:
            return bits
    raise ModelRefused(f"{place}_packed has the shape {list(packed.shape)}, not that of {rows} x {columns} numbers")


def _unpacked(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Numbers [R, `columns`] of words [R, W]; each is stored with half of its range added."""
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)
    numbers = torch.bitwise_right_shift(packed.unsqueeze(-1), shifts).bitwise_and(2**bits - 1)
    return numbers.flatten(1)[:, :columns].sub(2 ** (bits - 1))


def _spread(scales: Tensor, rows: int, columns: int, form: RoundedFormat, place: str) -> Tensor:
    """Scales for every number of a matrix, of one for all, one a row, or one a block as config.json says; one a column
    where it says no block. Broadcasts. A grid of another shape is refused: it would divide the matrix by a guess."""
    if scales.numel() == 1:
        return scales.reshape(1, 1)
    if list(scales.shape) in ([rows], [rows, 1]):
        return scales.reshape(rows, 1)
    if not form.blocks and list(scales.shape) == [1, columns]:
        return scales
    fitting = [
        (high, wide) for high, wide in form.blocks if list(scales.shape) == [-(-rows // high), -(-columns // wide)]
    ]
    if len(fitting) > 1:
        raise ModelRefused(f"{place} has the shape {list(scales.shape)}, which is that of blocks of {_sizes(fitting)}")
    for high, wide in fitting:
        return scales.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    said = f"blocks of {_sizes(form.blocks)}" if form.blocks else "no blocks"
    raise ModelRefused(
        f"{place} has the shape {list(scales.shape)}, which does not divide {rows} x {columns}: config.json says {said}"
    )


def _sizes(blocks: Sequence[tuple[int, int]]) -> str:
    return " or ".join(f"{high} x {wide}" for high, wide in blocks)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
