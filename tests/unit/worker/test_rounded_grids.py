"""Scales lie in the grid that config.json declares, and any other is refused: a guess would be read silently."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_worker.repository import rounded_format, rounded_weights
from shared.errors import ModelRefused
from support.rounded import compressed

NAME = "layer.weight"
BLOCKED = compressed("float-quantized", num_bits=8, type="float", strategy="block", block_structure="128x128")
GROUPED = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)
BY_ROW = compressed("float-quantized", num_bits=8, type="float", strategy="channel", group_size=-1)
NO_BLOCKS = {"quant_method": "fp8", "weight_block_size": None}


def form_of(config: dict[str, Any]) -> rounded_format.RoundedFormat:
    form = rounded_format.read(Path("config.json"), SimpleNamespace(quantization_config=config))
    assert form is not None
    return form


def whole(folder: Path, config: dict[str, Any], **parts: Tensor) -> Tensor:
    """The weight of a file with these parts; "w" is the rounded weight itself."""
    form = form_of(config)
    save_file({NAME + part.removeprefix("w"): tensor for part, tensor in parts.items()}, folder / "model.safetensors")
    return rounded_weights.read(folder, form, torch.float32)[NAME]


def ones(rows: int, columns: int) -> Tensor:
    return torch.ones(rows, columns).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("config", "scale"), [({"quant_method": "fp8"}, "w_scale_inv"), (BLOCKED, "w_scale")], ids=["fp8", "128x128"]
)
def test_blocks_are_those_of_the_config(tmp_path: Path, config: dict[str, Any], scale: str) -> None:
    """Of 1000 rows the last block has 104. fp8 that names no size has blocks of 128, and text names one too."""
    scales = torch.arange(1.0, 25).reshape(8, 3)
    expected = torch.stack(
        [torch.stack([scales[row // 128, column // 128] for column in range(384)]) for row in range(1000)]
    )
    parts = {"w": ones(1000, 384), scale: scales}
    assert torch.equal(whole(tmp_path, config, **parts), expected)


def test_one_scale_and_one_a_row_need_no_block(tmp_path: Path) -> None:
    """Beside blocks too, since layers may differ; one a column only where no block is declared."""
    by_row = torch.arange(1.0, 97)
    for config, scale in ((BLOCKED, "w_scale"), (BY_ROW, "w_scale"), (NO_BLOCKS, "w_scale_inv")):
        for scales in (by_row, by_row.unsqueeze(1)):
            assert torch.equal(whole(tmp_path, config, **{"w": ones(96, 6), scale: scales})[:, 5], by_row)
        assert torch.equal(
            whole(tmp_path, config, **{"w": ones(96, 6), scale: torch.tensor([2.0])}), 2 * ones(96, 6).float()
        )
    by_column = torch.arange(1.0, 7).unsqueeze(0)
    assert torch.equal(whole(tmp_path, NO_BLOCKS, w=ones(96, 6), w_scale_inv=by_column)[95:], by_column)
    with pytest.raises(ModelRefused, match=r"\[1, 6\].* blocks of 128 x 128"):
        whole(tmp_path, BLOCKED, w=ones(96, 6), w_scale=by_column)


WRONG: dict[str, tuple[dict[str, Any], tuple[int, int], Tensor, str]] = {
    "blocks that are not declared": (BY_ROW, (1000, 384), torch.ones(8, 3), "config.json says no blocks"),
    "other blocks": (BLOCKED, (1000, 384), torch.ones(10, 3), "config.json says blocks of 128 x 128"),
    "blocks that divide": (BLOCKED, (1024, 384), torch.ones(16, 3), "does not divide 1024 x 384"),
    "some rows": (BY_ROW, (96, 6), torch.ones(3), r"the shape \[3\], which does not divide 96 x 6"),
    "a line of blocks": (BLOCKED, (256, 128), torch.ones(2), r"the shape \[2\]"),
    "columns in a line": (BY_ROW, (96, 6), torch.ones(6), r"the shape \[6\]"),
    "three sides": (BLOCKED, (128, 128), torch.ones(1, 1, 2), r"the shape \[1, 1, 2\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_scales_in_another_grid_are_refused(tmp_path: Path, case: str) -> None:
    config, shape, scales, words = WRONG[case]
    with pytest.raises(ModelRefused, match=words):
        whole(tmp_path, config, w=ones(*shape), w_scale=scales)


def packed(groups: int, zeros: int) -> dict[str, Tensor]:
    """64 x 64 numbers of four bits, with scales and words of zeros in so many groups and words."""
    return {
        "w_packed": torch.zeros(64, 8, dtype=torch.int32),
        "w_shape": torch.tensor([64, 64]),
        "w_scale": torch.ones(64, groups),
        "w_zero_point": torch.zeros(zeros, groups, dtype=torch.int32),
    }


def test_groups_are_as_wide_as_declared(tmp_path: Path) -> None:
    """Numbers and zero points that are stored as 0 stand for the least number, and cancel each other."""
    assert torch.equal(whole(tmp_path, GROUPED, **packed(2, 8)), torch.zeros(64, 64))
    with pytest.raises(ModelRefused, match=r"\[64, 4\].* blocks of 1 x 32"):
        whole(tmp_path, GROUPED, **packed(4, 8))


@pytest.mark.parametrize("zeros", [4, 7, 9, 64])
def test_zero_points_have_a_word_for_every_eight_rows(tmp_path: Path, zeros: int) -> None:
    """Half of them would be spread over all rows."""
    with pytest.raises(ModelRefused, match=rf"zero_point has the shape \[{zeros}, 2\], 64 rows are packed into 8"):
        whole(tmp_path, GROUPED, **packed(2, zeros))


def test_a_grid_of_two_declared_blocks_is_refused(tmp_path: Path) -> None:
    """Layers may differ, but a grid that is both blocks' does not tell whose it is."""
    both = {**BLOCKED, "config_groups": {**BLOCKED["config_groups"], "group_1": group(block_structure=[100, 128])}}
    assert whole(tmp_path, both, w=ones(1000, 128), w_scale=torch.ones(10, 1)).sum() == 128_000
    with pytest.raises(ModelRefused, match=r"that of blocks of 128 x 128 or 100 x 128"):
        whole(tmp_path, both, w=ones(200, 128), w_scale=torch.ones(2, 1))


def group(**weights: Any) -> dict[str, Any]:
    return {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}


@pytest.mark.parametrize(
    "weights",
    [
        {"block_structure": "128"},
        {"block_structure": "axb"},
        {"block_structure": [128, 0]},
        {"block_structure": 128},
        {"group_size": 0},
        {"group_size": "wide"},
    ],
)
def test_a_block_that_cannot_be_read_is_refused(weights: dict[str, Any]) -> None:
    config = compressed("float-quantized", num_bits=8, type="float", **weights)
    with pytest.raises(ModelRefused, match=f"compressed-tensors.: {next(iter(weights))} .* must be two whole numbers"):
        form_of(config)
