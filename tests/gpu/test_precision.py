"""On CUDA: float16 where files ask for it."""

import json
from pathlib import Path

import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from support.tiny import write_encoder

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
BFLOAT16 = torch.bfloat16


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.float16), ("bfloat16", BFLOAT16)])
def test_files_may_ask_for_float16(dtype: str, expected: torch.dtype, tmp_path: Path) -> None:
    """A model whose config.json names it runs in it, and passes its gate there."""
    write_encoder(tmp_path, "tiny-bert")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "float16"}))
    model = load(str(tmp_path), Placement.choose(DEVICE, dtype))  # type: ignore[arg-type]
    assert model.encoder.dtype == expected
    assert card_of(model).dtype == str(expected).removeprefix("torch.")
