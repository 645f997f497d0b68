"""The row `step-rows`: what it costs the host to cut a step's rows by text, our way and vLLM's, in the published sizes.

64 texts end to end, of which 32 in the middle want all their token rows. Ours asks for the rows' places and gives every
job a view of the rows that are made once; vLLM's `AllPool` splits a slice of the hidden states. No row is computed.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import ROOT, describe, versions
from benchmarks.published import ours, servers
from benchmarks.published.row import OURS, STEP_ROWS, VLLM
from benchmarks.rounds import case

SAYS = "The host's microseconds for the token rows of 32 of 64 texts of a step. PR 41163: 59.89 -> 39.65 us."
FIGURE, WIDTH, FIRST, COUNT = "us", 4096, 16, 32
"""What is told, numbers of a row, the first text whose rows are wanted, and how many texts want theirs."""
LENGTHS: Mapping[str, list[int]] = {
    "texts of 128 tokens": [128] * 64,
    "texts of 32 to 255 tokens": [32 + number * 17 % 224 for number in range(64)],
}
SIDES = {OURS: False, f"{OURS}, a request a text": True}
"""Our sides: whether each text is a job of its own."""
SCRIPT = Path(__file__).with_name("splitting_vllm.py")


def measured(rounds: int) -> dict[str, Any]:
    """Times all sides in turns, and gives the row's result. Exits where vLLM's Python fails."""
    figures: dict[str, dict[str, list[Mapping[str, float]]]] = {}
    for number in range(rounds):
        for name, lengths in LENGTHS.items():
            turns: dict[str, Callable[[], float]] = {
                side: partial(_ours, lengths, apart) for side, apart in SIDES.items()
            }
            turns[VLLM] = partial(_vllm, lengths)
            for side in list(turns)[:: -1 if number % 2 else 1]:
                figures.setdefault(name, {}).setdefault(side, []).append({FIGURE: turns[side]()})
                line = f"{STEP_ROWS}: {name}, {side}: {figures[name][side][-1][FIGURE]:.1f} us"
                print(line, file=sys.stderr, flush=True)
    return {
        "benchmark": f"published/{STEP_ROWS}",
        "says": SAYS,
        "settings": {"threads": 1, "rounds": rounds, "starts": rounds, "seconds": ours.SPLIT_SECONDS},
        "machine": describe(),
        "peers": {"vllm": versions(("vllm", "torch"), next(servers.VENV.glob("lib/python*/site-packages"), None))},
        "cases": [case(name, sides, OURS, (FIGURE,)) for name, sides in figures.items()],
    }


def _ours(lengths: list[int], apart: bool) -> float:
    return ours.splitting(lengths, FIRST, COUNT, WIDTH, apart=apart) * 1e6


def _vllm(lengths: list[int]) -> float:
    request = {"lengths": lengths, "first": FIRST, "count": COUNT, "width": WIDTH, "seconds": ours.SPLIT_SECONDS}
    command = [servers.PROGRAM.with_name("python"), SCRIPT]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(request), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{SCRIPT.name} ended with {done.returncode}\n{done.stderr[-2000:]}")
    line = next(line for line in done.stdout.splitlines() if line.startswith('{"seconds":'))
    return float(np.median(json.loads(line)["seconds"])) * 1e6
