"""Which number format a model is loaded in: what is asked, then what its files say on CUDA, then the device's own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.model import loading, source
from gpu_worker.model.loading import load
from shared.errors import ModelRefused
from support.breakages import settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
FLOAT16 = {"dtype": "float16"}


@pytest.mark.parametrize(
    ("config", "device", "named", "expected"),
    [
        (FLOAT16, CUDA, None, "float16"),
        ({"torch_dtype": "float16"}, CUDA, None, "float16"),
        ({"text_config": {"dtype": "float16"}}, CUDA, None, "float16"),
        ({"dtype": "float32", "torch_dtype": "float16"}, CUDA, None, "bfloat16"),
        ({"dtype": "bfloat16"}, CUDA, None, "bfloat16"),
        ({"dtype": None}, CUDA, None, "bfloat16"),
        ({}, CUDA, None, "bfloat16"),
        (FLOAT16, CUDA, "bfloat16", "bfloat16"),
        (FLOAT16, CUDA, "float32", "float32"),
        (FLOAT16, CPU, None, "float32"),
    ],
)
def test_files_may_ask_for_float16(
    config: dict[str, Any], device: torch.device, named: str | None, expected: str
) -> None:
    """By either name, on CUDA alone, and where nobody has named another."""
    usual = "float32" if device.type == "cpu" else "bfloat16"
    placement = Placement(device=device, dtype=getattr(torch, named or usual), automatic=named is None)
    assert placement.for_files_in(source._number_format(config)).dtype == getattr(torch, expected)


def test_what_is_named_is_not_automatic() -> None:
    assert Placement.choose("cpu").automatic
    assert not Placement.choose("cpu", "bfloat16").automatic


@pytest.mark.parametrize("automatic", [True, False])
def test_a_refusal_in_float16_says_what_else_there_is(
    automatic: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the files, and not the user, chose it."""
    settings("config.json", **FLOAT16)(folder)

    def refused(*_: object) -> None:
        raise ModelRefused("its hidden states are not finite")

    monkeypatch.setattr(Placement, "enter", lambda _: None)
    monkeypatch.setattr(source.weights, "load", lambda *_: (None, ""))
    monkeypatch.setattr(loading, "_loaded", refused)
    hint = "; its config.json asks for float16, --dtype bfloat16 may do" if automatic else ""
    dtype = torch.bfloat16 if automatic else torch.float16
    with pytest.raises(ModelRefused, match=f"its hidden states are not finite{hint}$"):
        load(str(folder), Placement(device=CUDA, dtype=dtype, automatic=automatic))
