"""The published tables beside vLLM on the same cores: the same requests over HTTP, row by row.

A row names a model, its requests and its clients (`--row`; all by default). Both servers read the same files. They
start in turns, alone on the cores, with the clients in a process of their own on the same cores; vLLM with each setting
that may be its best: one core left to itself or none, in chunks or not. When a side first starts, its answers are
compared with the model's own code before anything is timed. Before each round products alone are timed, which bound
both servers: tokens a second if nothing but the model's linear layers took time. Results are kept a file a row, in
benchmarks/results/published, and written after each round. `--scale tiny` cuts models to two layers: it shows that a
row works.

  token-embeddings   16 prompts of token rows a request, 4 clients, a connection a request (PR 39533); prompts that have
                     nothing in common, and prompts of which the shorter ones begin the longer ones
  instruct-burst     500 prompts with an instruction that the mean leaves out, at once, GritLM's kind (PR 38139)
  dense              Qwen3-0.6B, 20 texts of 2,048 tokens +- 50 % at once (PR 35127)
  mean-pooling       texts of 512 tokens (PR 38559)
  short-texts        texts of 32 tokens (PR 39113)
  clients            MiniLM, 250 tokens, 1 to 64 clients, 1 and 4 frontends; the same without a server (PR 39763)
  late-interaction   ColBERT: a query and 8, 1,000 and 10,000 documents (PR 35330)
  step-rows          what the host takes to cut a step's rows by text; no server (PR 41163)
  short-beside-long  one short text at a time, alone and beside long ones; ours also as interactive calls
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from benchmarks import products, result, roofline
from benchmarks.machine import describe, versions
from benchmarks.published import servers, splitting
from benchmarks.published.comparison import agreements, reference
from benchmarks.published.models import folder_of
from benchmarks.published.row import OURS, STEP_ROWS, VLLM, Row
from benchmarks.published.rows import rows
from benchmarks.published.servers import Launch, launches
from benchmarks.published.turns import Seen, Trial, alone, tell, together
from benchmarks.rounds import ALONE, Figures, Measurements, case, shares

NORMAL = "small"
"""The scale whose results are rendered; those of others have its name in theirs."""
QUICK = ("token-embeddings", "mean-pooling", "short-texts")
"""Rows of `--quick`."""
QUICK_SECONDS = 5.0
"""Seconds of a case in `--quick`."""
START = {OURS: 35.0, VLLM: 70.0}
"""Seconds to ready that an estimate goes by: those of Qwen3-Embedding-0.6B on two cores."""
RATE, LAUNCHES = "tokens/s", 3
"""The figure that products alone bound, and how many of their product are timed together."""
COMPARED = ("requests/s", "mean ms", "p50 ms", "p95 ms", "p99 ms")
PACKAGES = ("vllm", "torch", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. `seconds`: of each case, 0 for the row's own. `sides`: their names; ours among them.
    `together`: all sides are loaded before the first round, and asked in turns."""

    scale: Any
    rounds: int
    seconds: float
    cores: Sequence[int]
    sides: Sequence[str]
    together: bool = False


def measured(row: Row, options: RunOptions) -> Iterator[dict[str, Any]]:
    """Compares and measures a row, and gives its result after each round, so that what is measured is kept.

    A side that does not start in the first round is absent from the result, with its reason. Exits where a side is not
    known, where none is ours, and where ours is wrong or does not start.
    """
    sides = launches(row, options.cores)
    if unknown := [side for side in options.sides if side not in sides]:
        sys.exit(f"--side = {unknown[0]!r}: there are {', '.join(map(repr, sides))}")
    if not any(side.startswith(OURS) for side in options.sides):
        sys.exit(
            f"--side = {', '.join(options.sides)!r}: a case compares with ours, so one of {_ours(sides)} must be named"
        )
    sides = {side: launch for side, launch in sides.items() if side in options.sides}
    seconds = options.seconds or row.seconds
    model = reference(row, folder_of(row))
    trial = Trial(row=row, sides=sides, seconds=seconds, scale=options.scale, model=model)
    figures: Measurements = {of.name: {side: [] for side in sides} for of in row.cases}
    limits: list[Figures] = []
    with (together if options.together else alone)(trial) as measured_round:
        for number in range(options.rounds):
            limits.append({RATE: limit(row, len(options.cores))})
            says = estimate(row, trial.sides, seconds, limits[-1][RATE], options)
            tell(f"{row.name}: round {number + 1} of {options.rounds}; {says}")
            for name, side, case_figures in measured_round(number):
                figures[name][side].append(case_figures)
            flags = {side: " ".join(launch.flags) for side, launch in trial.sides.items()}
            extent = {"seconds": seconds, "requests": {of.name: of.stream.requests for of in row.cases}}
            settings = _settings(options, number + 1, extent, flags)
            yield _result(row, settings, trial.seen, figures, limits)


def _ours(sides: Iterable[str]) -> str:
    return ", ".join(repr(side) for side in sides if side.startswith(OURS))


def _result(
    row: Row, settings: dict[str, Any], seen: Seen, figures: Measurements, limits: Sequence[Figures]
) -> dict[str, Any]:
    """Makes the JSON of the rounds so far. In a case stand the sides that were measured in all rounds."""
    cases = []
    for name, sides in figures.items():
        whole = {side: rounds for side, rounds in sides.items() if len(rounds) == settings["rounds"]}
        ours = next((side for side in whole if side.startswith(OURS)), None)
        if ours is not None:
            cases.append(case(name, bounded(whole, limits), ours, COMPARED))
    return {
        "benchmark": f"published/{row.name}",
        "says": f"{row.says}; {row.model.removeprefix('random:')} in {row.dtype}. {row.published}.",
        "settings": settings,
        "machine": describe(),
        "absent": seen.absent,
        "peers": {"vllm": versions(PACKAGES, next(servers.VENV.glob("lib/python*/site-packages"), None))},
        "agreement": agreements(seen.answers, seen.cosines),
        "cold start, s": seen.cold,
        "cases": cases,
    }


def bounded(sides: Mapping[str, Sequence[Figures]], limits: Sequence[Figures]) -> Mapping[str, Sequence[Figures]]:
    """Adds products alone as a side, and each side's share of them; not where no tokens are counted."""
    return shares({**sides, ALONE: limits}, RATE) if all(RATE in rounds[0] for rounds in sides.values()) else sides


def limit(row: Row, threads: int) -> float:
    """Measures how many tokens a second there would be if nothing but the products of linear layers took time."""
    torch.set_num_threads(threads)
    shape, run = roofline.shape(row.model), products.product(getattr(torch, row.dtype))
    flops = run() / products.seconds(run, torch.device("cpu"), LAUNCHES)
    layers, projected = row.layers or shape.layers, row.projected or shape.projected
    return flops / (2 * replace(shape, layers=layers, projected=projected).weights)


def _settings(options: RunOptions, rounds: int, extent: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, Any]:
    return {
        "threads": len(options.cores),
        "rounds": rounds,
        "starts": 1 if options.together else rounds,
        "together": options.together,
        **extent,
        "scale": options.scale,
        "flags": flags,
        "preloaded in vLLM": [path.name for path in servers.preloaded()],
    }


def main(arguments: argparse.Namespace) -> int:
    """Runs `python -m benchmarks published`."""
    if arguments.cores:
        os.sched_setaffinity(0, map(int, arguments.cores.split(",")))  # the servers and the clients inherit it
    cores = sorted(os.sched_getaffinity(0))
    quick = arguments.quick
    chosen = arguments.row or (QUICK if quick else [*rows(), STEP_ROWS])
    failed: list[str] = []
    for name in chosen:
        if name == STEP_ROWS:
            if error := _keep(name, lambda: iter([splitting.measured(arguments.rounds)]), arguments.out):
                failed.append(error)
            continue
        row = rows(arguments.scale)[name]
        if quick:
            row = row.short()
        options = RunOptions(
            scale=arguments.scale,
            rounds=1 if quick else arguments.rounds,
            seconds=QUICK_SECONDS if quick else arguments.seconds,
            cores=cores,
            sides=arguments.side or _sides(row, cores, quick),
            together=arguments.together,
        )
        if error := _finish(row, options, None if quick else arguments.out):
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
    return int(bool(failed))


def _finish(row: Row, options: RunOptions, folder: Path | None) -> str:
    """Measures a row, writes its result after each round, and prints it. Gives what went wrong, so that the next row is
    run."""
    scale = "" if options.scale == NORMAL else f"-{options.scale}"
    return _keep(f"{row.name}{scale}", lambda: measured(row, options), folder)


def _keep(name: str, measure: Callable[[], Iterator[dict[str, Any]]], folder: Path | None) -> str:
    """Writes each result as it comes, and prints the last one. Gives what went wrong."""
    outcome: dict[str, Any] = {}
    problem = ""
    try:
        for outcome in measure():
            if folder is not None:
                result.write(outcome, folder / f"{name}.json")
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise  # a signal's, which ends everything
        problem = error.code
    except (OSError, ValueError) as error:
        problem = repr(error)
    if outcome:
        print(f"**{outcome['says']}**\n\n{result.tables(outcome)}\n", flush=True)
    return problem


def estimate(row: Row, sides: Mapping[str, Launch], seconds: float, limit: float, options: RunOptions) -> str:
    """Says how long a row takes: starts as on two cores, and requests that are counted at half of products alone."""
    tokens = sum(
        sum(sum(request) for request in islice(cycle(of.stream.workload.requests), of.stream.requests))
        for of in row.cases
    )
    timed = sum(seconds for of in row.cases if not of.stream.requests) * 1.2 + tokens / limit * 2
    starts = sum(START[OURS if side.startswith(OURS) else VLLM] for side in sides)
    turns = len(sides) * timed + row.offline * 4 * seconds
    whole = options.rounds * turns + starts * (1 if options.together else options.rounds)
    turns += 0 if options.together else starts
    return f"a round takes about {turns / 60:.0f} minutes, all some {whole / 60:.0f}"


def _sides(row: Row, cores: Sequence[int], quick: bool) -> list[str]:
    """Names the sides of a row; in `--quick` ours, and vLLM on all cores in its first setting."""
    names = list(launches(row, cores))
    return [OURS, f"{VLLM}, all cores"] if quick else names
