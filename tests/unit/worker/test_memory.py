"""Sparse vectors of a large step and a real vocabulary fit into memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
GIGABYTE = 1_000_000_000


def measured(length: int) -> dict[str, int]:
    """What a process of its own says, which no other test's memory touches."""
    command = [sys.executable, str(TESTS / "support" / "splade_memory.py"), str(length)]
    paths = f"{TESTS}:{TESTS.parent}:{TESTS.parent / 'client'}"
    environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, int] = json.loads(made.stdout.splitlines()[-1])
    return figures


def test_a_step_of_16384_tokens_stays_under_a_gigabyte() -> None:
    """SPLADE, 64 texts of 256 tokens, a vocabulary of 30,522: whose logits would be 2 GB."""
    figures = measured(256)
    assert (figures["steps"], figures["vectors"]) == (1, 64)
    assert figures["bytes"] < GIGABYTE


@pytest.mark.slow
def test_texts_of_one_token_are_cut_into_steps_that_fit() -> None:
    """16,384 of them, whose weights would be 2 GB, as the queue cuts them by their costs."""
    figures = measured(1)
    assert figures["vectors"] == 16_384
    assert 1 < figures["steps"] < 200
    assert figures["bytes"] < GIGABYTE
