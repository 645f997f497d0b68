"""The published tables beside vLLM on the same cores: the same requests over HTTP, row by row.

A row names a model, its requests and its clients (`--row`; all by default). Both servers read the same files. All sides
of a row are loaded at once and asked in turns, case by case, so that they meet the same machine: that wants 10 GB for
each of vLLM's settings and 3 for ours. The clients run in a process of their own on the same cores. Before anything is
timed, the answers are compared with the model's own code. Before each round products alone are timed, which bound both
servers: tokens a second if nothing but the model's linear layers took time. Results are kept a file a row, in
benchmarks/results/published, and written after each round. `--scale tiny` cuts models to two layers: it shows that a
row works.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import our_kernels, result, roofline
from benchmarks.benchmark import ALONE, Figures, Measurements, case, shares
from benchmarks.machine import ROOT, describe, versions
from benchmarks.peers.process import modules_of
from benchmarks.published import servers
from benchmarks.published.model import REFERENCE, agreement, answers, folder_of, reference
from benchmarks.published.rows import OURS, Case, Row, rows
from benchmarks.published.servers import ReadyServer, launches, started

NORMAL = "small"
"""The scale whose results are rendered; those of others have its name in theirs."""
RATE, LAUNCHES = "tokens/s", 3
"""The figure that products alone bound, and how many of their product are timed together."""
COMPARED = ("requests/s", "mean ms", "p50 ms", "p95 ms", "p99 ms")
PACKAGES = ("vllm", "torch", "transformers")
PAUSE = 1.0
"""Seconds in which a server that is ready comes to rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. `seconds`: of each case, 0 for the row's own."""

    scale: Any
    rounds: int
    seconds: float
    cores: Sequence[int]


def measured(row: Row, options: RunOptions) -> Iterator[dict[str, Any]]:
    """Compares and measures a row, and gives its result after each round, so that what is measured is kept.

    A side of vLLM that does not start, and a case that a side fails, is absent from the result with its reason. Exits
    where ours does not start, answers wrongly or fails a case.
    """
    sides = launches(row, options.cores)
    seconds = options.seconds or row.seconds
    model = reference(row, folder_of(row))
    outcome: dict[str, Any] = {
        "benchmark": f"published/{row.name}",
        "says": f"{row.says}; {row.served_name} in {row.dtype}. {row.published}.",
        "settings": {
            "threads": len(options.cores),
            "starts": 1,
            "seconds": seconds,
            "requests": {of.name: of.stream.requests for of in row.cases},
            "scale": options.scale,
            "flags": {side: " ".join(launch.flags) for side, launch in sides.items()},
        },
        "machine": describe(),
        "absent": {},
        "peers": {"vllm": versions(PACKAGES, next(servers.VENV.glob("lib/python*/site-packages"), None))},
        "agreement": {},
    }
    absent: dict[str, str] = outcome["absent"]
    figures: Measurements = {of.name: {side: [] for side in sides} for of in row.cases}
    limits: list[Figures] = []
    with ExitStack() as cleanup:
        ready: dict[str, ReadyServer] = {}
        for side, launch in sides.items():
            try:
                ready[side] = cleanup.enter_context(started(f"{row.name}, {side}", launch))
                outcome["agreement"][side] = {REFERENCE: agreement(side, answers(row, launch.url), model)}
                tell(f"{row.name}, {side}: ready, {outcome['agreement'][side]}")
            except SystemExit as error:
                absent[side] = reason(side, error)
        time.sleep(PAUSE)
        for number in range(options.rounds):
            tell(f"{row.name}: round {number + 1} of {options.rounds}")
            limits.append({RATE: limit(row, len(options.cores))})
            for of in row.cases:
                for side in list(ready)[:: -1 if number % 2 else 1]:
                    try:
                        figures[of.name][side].append(turn(row, of, ready[side], seconds, options.scale, number))
                    except SystemExit as error:
                        absent[f"{side}, {of.name}"] = reason(side, error)
                    else:
                        tell(f"  {of.name}, {side}: {figures[of.name][side][-1]['requests/s']:.4g} requests/s")
            settings = outcome["settings"] | {"rounds": number + 1}
            yield {**outcome, "settings": settings, "cases": _cases(figures, limits)}


def reason(side: str, error: SystemExit) -> str:
    """Gives the first line of why a peer is absent, without a path of this machine. Raises the error where the side is
    ours, and where it is a signal's."""
    if not isinstance(error.code, str) or side == OURS:
        raise error
    tell(f"{side}: {error.code}")
    return error.code.partition("\n")[0].partition(" (/")[0]


def _cases(figures: Measurements, limits: Sequence[Figures]) -> list[dict[str, Any]]:
    """Makes the JSON of all cases. In a case stand the sides that were measured in all rounds; products alone are one
    of them where tokens are counted."""
    cases = []
    for name, sides in figures.items():
        whole: Mapping[str, Sequence[Figures]] = {
            side: rounds for side, rounds in sides.items() if len(rounds) == len(limits)
        }
        if all(RATE in rounds[0] for rounds in whole.values()):
            whole = shares({**whole, ALONE: limits}, RATE)
        cases.append(case(name, whole, OURS, COMPARED))
    return cases


def limit(row: Row, threads: int) -> float:
    """Measures how many tokens a second there would be if nothing but the products of linear layers took time."""
    torch.set_num_threads(threads)
    shape, run = roofline.shape(row.model), our_kernels.product(getattr(torch, row.dtype))
    flops = run() / our_kernels.seconds(run, torch.device("cpu"), LAUNCHES)
    layers, projected = row.layers or shape.layers, row.projected or shape.projected
    return flops / (2 * replace(shape, layers=layers, projected=projected).weights)


def turn(row: Row, of: Case, server: ReadyServer, seconds: float, scale: str, number: int) -> dict[str, float]:
    """Runs the clients of a case in the round of this `number`, in a process of their own, and gives their figures with
    the server's CPU and memory. Exits where they fail."""
    wanted = {"row": row.name, "case": of.name, "url": server.url, "seconds": seconds, "scale": scale}
    wanted |= {"round": number, "watch": server.pids}
    command = [sys.executable, "-m", "benchmarks.published.driver", json.dumps(wanted)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | modules_of(ROOT), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{row.name}, {of.name}: the clients ended with {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures | {
        f"server: {figure}": sum(figures[f"{name}: {figure}"] for name in server.pids)
        for figure in ("CPU ms/request", "peak MiB")
    }


def main(arguments: argparse.Namespace) -> int:
    """Runs `python -m benchmarks published`. A row that fails is told, and the next one is run."""
    if arguments.cores:
        os.sched_setaffinity(0, map(int, arguments.cores.split(",")))  # the servers and the clients inherit it
    options = RunOptions(
        scale=arguments.scale,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        cores=sorted(os.sched_getaffinity(0)),
    )
    every = rows(arguments.scale)
    problems = [_keep(every[name], options, arguments.out) for name in arguments.row or every]
    return int(any(problems))


def _keep(row: Row, options: RunOptions, folder: Path) -> str:
    """Measures a row, writes its result after each round, and prints the last one. Gives what went wrong."""
    outcome: dict[str, Any] = {}
    problem, scale = "", "" if options.scale == NORMAL else f"-{options.scale}"
    try:
        for outcome in measured(row, options):
            result.write(outcome, folder / f"{row.name}{scale}.json")
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise  # a signal's, which ends everything
        problem = error.code
    except (OSError, ValueError) as error:
        problem = repr(error)
    if outcome:
        print(f"**{outcome['says']}**\n\n{result.tables(outcome)}\n", flush=True)
    if problem:
        tell(f"{row.name}: {problem}")
    return problem


def tell(line: str) -> None:
    """Prints a line on standard error."""
    print(line, file=sys.stderr, flush=True)
