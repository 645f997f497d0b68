"""Weights move into huge pages, and keep their numbers."""

from pathlib import Path

import pytest
import torch
from torch import nn

from gpu_worker.device import memory
from gpu_worker.model.loading import load
from support.random_models import random_model
from support.tiny import CPU

SIZE = 2 << 20
Call = tuple[int, int, int]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What the kernel is told; it refuses the page that the first address lies in."""
    told: list[Call] = []

    def advise(address: int, size: int, advice: int) -> bool:
        told.append((address, size, advice))
        return address != told[0][0]

    monkeypatch.setattr(memory, "advise", advise)
    monkeypatch.setattr(memory, "page_bytes", lambda: SIZE)
    return told


def test_every_page_of_the_weights_is_moved_once(calls: list[Call]) -> None:
    """Weights that share a page, or that modules share, included; buffers too, and nothing that has no memory here."""
    layer, table = nn.Linear(1024, 3000), nn.Embedding(10, 4)
    layer.register_buffer("far", torch.empty(1 << 22, device="meta"))
    layer.register_buffer("near", torch.ones(1 << 19))
    moved = memory.move_to_huge_pages([layer, nn.Sequential(layer, table)])
    tensors = [layer.weight, layer.bias, layer.near, table.weight]
    spans = [(tensor.data_ptr(), tensor.data_ptr() + 4 * tensor.numel()) for tensor in tensors]
    pages = sorted({place // SIZE * SIZE for start, stop in spans for place in (*range(start, stop, SIZE), stop - 1)})
    kinds = (memory.MADV_HUGEPAGE, memory.MADV_COLLAPSE)
    assert calls == [(page, SIZE, kind) for page in pages for kind in kinds]
    assert moved == SIZE * (len(pages) - 1)


@pytest.mark.parametrize(
    ("enabled", "size", "expected"),
    [("always [madvise] never", str(SIZE), SIZE), ("always madvise [never]", str(SIZE), 0), ("[always]", None, 0)],
)
def test_pages_are_as_large_as_the_kernel_says(
    enabled: str, size: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are none where they are switched off, and on systems without them."""
    monkeypatch.setattr(memory, "HUGE_PAGES", tmp_path)
    (tmp_path / "enabled").write_text(enabled)
    if size is not None:
        (tmp_path / "hpage_pmd_size").write_text(size)
    assert memory.page_bytes() == expected


def test_weights_keep_their_numbers() -> None:
    layer = nn.Linear(2048, 2048)
    before = {name: numbers.clone() for name, numbers in layer.state_dict().items()}
    address = layer.weight.data_ptr()
    assert memory.move_to_huge_pages([layer]) >= 0
    assert layer.weight.data_ptr() == address
    assert all(torch.equal(numbers, before[name]) for name, numbers in layer.state_dict().items())


def test_a_load_moves_the_weights_of_the_encoder_and_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[nn.Module] = []
    monkeypatch.setattr(memory, "move_to_huge_pages", moved.extend)
    model = load(random_model("tiny-classifier"), CPU)
    assert moved == [model.encoder.model, *model.heads.modules()]
