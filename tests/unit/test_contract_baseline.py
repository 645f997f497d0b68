"""The committed baseline of the contracts changes only together with a line in the changelog."""

import hashlib
from enum import IntEnum
from pathlib import Path

import pytest

from selvage.v1 import vectors_pb2
from selvage.worker.v1 import worker_pb2
from shared import vectors
from shared.jobs import ChunkKind

ROOT = Path(__file__).parents[2]


def test_the_changelog_names_the_baseline() -> None:
    """Whoever accepts a breaking change says so where users read."""
    digest = hashlib.sha256((ROOT / "protos" / "baseline.binpb").read_bytes()).hexdigest()
    assert f"Contract baseline: `{digest[:16]}`" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    "ours",
    [
        vectors.DataType,
        vectors.OutputKind,
        vectors.InputType,
        vectors.TruncationSide,
        vectors.ScoringMethod,
        vectors.Layout,
        ChunkKind,
    ],
)
def test_enums_have_the_numbers_of_the_contract(ours: type[IntEnum]) -> None:
    theirs = getattr(worker_pb2 if ours is ChunkKind else vectors_pb2, ours.__name__)
    prefix = theirs.DESCRIPTOR.values_by_number[0].name.removesuffix("UNSPECIFIED")
    contract = {name.removeprefix(prefix): number for name, number in theirs.items() if number}
    assert {each.name: each.value for each in ours if each.value} == contract
