"""Tells from config.json how weights were rounded before they were published (`quantization_config`).

`rounded_weights` reads two formats; all others are refused by name, with what they would need. It knows no tensor.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ModelRefused

KEYS = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json, in this order: transformers', that of older compressed-tensors, MLX's."""
INSTEAD = "serve the model that they were rounded from; --linear int8 or fp8 rounds its layers at load"
PACKAGES = {
    "aqlm": "aqlm",
    "auto-round": "auto-round",
    "awq": "gptqmodel",
    "bitnet": "accelerate",
    "bitsandbytes": "bitsandbytes",
    "eetq": "kernels",
    "fbgemm_fp8": "fbgemm-gpu",
    "fouroversix": "fouroversix",
    "fp_quant": "fp_quant",
    "gguf": "llama.cpp",
    "gptq": "gptqmodel",
    "higgs": "flute-kernel",
    "hqq": "hqq",
    "metal": "kernels",
    "mlx": "mlx",
    "modelopt": "nvidia-modelopt",
    "mxfp4": "kernels",
    "mxfp8": "kernels",
    "nvfp4": "kernels",
    "quanto": "optimum-quanto",
    "quark": "amd-quark",
    "sinq": "sinq",
    "spqr": "spqr_quant",
    "torchao": "torchao",
    "vptq": "vptq",
}
"""What unpacks the weights of a format, for the refusal."""
COMPRESSED = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
"""Formats of compressed-tensors that are read."""
FP8_BLOCK = [128, 128]
"""What a missing weight_block_size means, as in transformers' FineGrainedFP8Config; null means one scale a matrix."""
NUMBERS = {("int", 4), ("int", 8), ("float", 8)}
"""Their numbers, by type and bits."""

SCALES = re.compile(r"(^|[._])(input|output|activation|q|k|v)_(global_)?(scale|zero_point)$")
"""Pattern of the scales by which activations, queries, keys and values would be rounded; here they are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedFormat:
    """How the weights of a model are stored.

    `name` is for users. `scale` ends the name of a weight's scales, behind `weight`. `blocks`: rows and columns of a
    matrix that share a scale where the scales lie in a grid, as config.json says; more than one where layers differ.
    """

    name: str
    scale: str
    blocks: tuple[tuple[int, int], ...]

    @property
    def notice(self) -> str:
        """What a user should know of vectors of such a model."""
        return f"its weights were rounded before ({self.name}): they run as whole matrices, with activations unrounded"


def read(file: Path, config: Any) -> RoundedFormat | None:
    """The format of the weights beside `file`, which is `config` loaded; None for whole ones. Raises ModelRefused."""
    for key in KEYS:
        said = getattr(config, key, None)
        if said is None:
            continue
        said = said if isinstance(said, Mapping) else said.to_dict() if hasattr(said, "to_dict") else {}
        return _format_of(said, f"{file}: {key}", key)
    return None


def forget(config: Any) -> bool:
    """Takes the format out of a config, so that transformers builds the class for whole weights; whether it had one."""
    declared = [key for key in KEYS if getattr(config, key, None) is not None]
    for key in declared:
        delattr(config, key)
    return bool(declared)


def _format_of(said: Mapping[str, Any], place: str, key: str) -> RoundedFormat | None:
    method = said.get("quant_method") or ("compressed-tensors" if key == "compression_config" else None)
    if method is None and {"bits", "group_size"} <= set(said):
        method = "mlx"
    if method == "fp8":
        return _fp8(said, place)
    if method == "compressed-tensors":
        return _compressed(said, place)
    package = PACKAGES.get(str(method))
    needs = f"they need the package {package}" if package else "their format is not known here"
    raise ModelRefused(f"{place} ({method}): such weights are not served, {needs}: {INSTEAD}")


def _fp8(said: Mapping[str, Any], place: str) -> RoundedFormat:
    """DeepSeek's format, which transformers calls FineGrainedFP8: a scale a block, or one for a matrix."""
    size = said.get("weight_block_size", FP8_BLOCK)
    block = _block(size, f"{place} (fp8): weight_block_size")
    return RoundedFormat(name="fp8", scale="_scale_inv", blocks=(block,) if block else ())


def _compressed(said: Mapping[str, Any], place: str) -> RoundedFormat | None:
    """None where no group rounds weights: some configs round activations or the cache of keys and values alone."""
    declared = said.get("config_groups")
    if not isinstance(declared, Mapping) or not all(_is_group(group) for group in declared.values()):
        raise ModelRefused(f"{place} (compressed-tensors): config_groups must tell how weights are stored")
    groups = [group for group in declared.values() if group.get("weights") is not None]
    if not groups:
        return None
    formats = sorted({str(group.get("format") or said.get("format")) for group in groups})
    other = [name for name in formats if name not in COMPRESSED]
    if other:
        raise _unread(place, other[0])
    if said.get("transform_config"):
        raise _unread(place, "transform_config (rotated activations)")
    sparse = said.get("sparsity_config") or {}
    if sparse and sparse.get("format") not in (None, "dense"):
        raise _unread(place, f"sparsity_config {sparse.get('format')}")
    weights = [group["weights"] for group in groups]
    for numbers in weights:
        kind = (numbers.get("type", "int"), numbers.get("num_bits", 8))
        if kind not in NUMBERS:
            raise _unread(place, f"{kind[0]} of {kind[1]} bits")
    blocks = [block for numbers in weights for block in _blocks(numbers, place)]
    named = f"compressed-tensors {', '.join(formats)}"
    return RoundedFormat(name=named, scale="_scale", blocks=tuple(dict.fromkeys(blocks)))


def _is_group(group: Any) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping | None)


def _blocks(numbers: Mapping[str, Any], place: str) -> Iterator[tuple[int, int]]:
    """The blocks that one group of layers declares: its block_structure, or its group_size as a block of one row."""
    size = numbers.get("block_structure")
    if isinstance(size, str):  # older compressed-tensors write 128x128
        size = [int(side) if side.isdecimal() else side for side in size.split("x")]
    groups = numbers.get("group_size")
    if groups == -1:  # one scale a row
        groups = None
    for said, key in ((size, "block_structure"), (None if groups is None else [1, groups], "group_size")):
        if block := _block(said, f"{place} (compressed-tensors): {key}"):
            yield block


def _block(size: Any, place: str) -> tuple[int, int] | None:
    """Rows and columns of a block; None where none is declared. Raises ModelRefused for what is no block."""
    if size is None:
        return None
    if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
        raise ModelRefused(f"{place} {size!r} must be two whole numbers")
    return size[0], size[1]


def _unread(place: str, what: str) -> ModelRefused:
    read_here = f"of compressed-tensors {', '.join(COMPRESSED)} with 4 or 8 bits are read"
    return ModelRefused(f"{place} (compressed-tensors, {what}): such weights are not served, {read_here}: {INSTEAD}")
