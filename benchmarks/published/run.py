"""The published tables beside vLLM on the same cores: the same requests over HTTP, row by row.

A row names a model, its requests and its clients (`--row`; all by default). Both servers read the same files. They
start in turns, alone on the cores, with the clients in a process of their own on the same cores; vLLM with each setting
that may be its best: one core left to itself or none, in chunks or not. The answers of all sides are compared with the
model's own code before anything is timed. Before each round products alone are timed, which bound both servers: tokens
a second if nothing but the model's linear layers took time. Results are kept a file a row, in
benchmarks/results/published. `--scale tiny` cuts models to two layers: it shows that a row works.

  token-embeddings   16 prompts of token rows a request, 4 clients, a connection a request (PR 39533)
  dense              Qwen3-0.6B, 20 texts of 2,048 tokens +- 50 % at once (PR 35127)
  mean-pooling       texts of 512 tokens (PR 38559)
  short-texts        texts of 32 tokens (PR 39113)
  clients            MiniLM, 250 tokens, 1 to 64 clients (PR 39763)
  late-interaction   ColBERT: a query and 8, 1,000 and 10,000 documents (PR 35330)
  short-beside-long  one short text at a time, alone and beside long ones; ours also as interactive calls
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import products, result, roofline
from benchmarks.machine import ROOT, describe, versions
from benchmarks.peers.process import modules_of
from benchmarks.published import servers
from benchmarks.published.comparison import answers, compared, reference
from benchmarks.published.models import folder_of
from benchmarks.published.rows import OURS, VLLM, Case, Row, rows
from benchmarks.published.servers import Launch, ReadyServer, launches, started
from benchmarks.rounds import ALONE, Figures, Measurements, case, shares

NORMAL = "small"
"""The scale whose results are rendered; those of others have its name in theirs."""
QUICK = ("token-embeddings", "dense", "clients")
"""Rows of `--quick`."""
QUICK_SECONDS, PAUSE = 5.0, 1.0
"""Seconds of a case in `--quick`; seconds in which a server that is ready comes to rest."""
RATE, LAUNCHES = "tokens/s", 3
"""The figure that products alone bound, and how many of their product are timed together."""
COMPARED = ("requests/s", "mean ms", "p50 ms", "p95 ms", "p99 ms")
PACKAGES = ("vllm", "torch", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. `seconds`: of each case, 0 for the row's own. `sides`: names, empty for all."""

    scale: Any
    rounds: int
    seconds: float
    cores: Sequence[int]
    sides: Sequence[str]


def measured(row: Row, options: RunOptions) -> dict[str, Any]:
    """Compares and measures a row, and gives its result. Exits where a side is not known, or does not start."""
    sides = launches(row, options.cores)
    if unknown := [side for side in options.sides if side not in sides]:
        sys.exit(f"--side = {unknown[0]!r}: there are {', '.join(map(repr, sides))}")
    sides = {side: launch for side, launch in sides.items() if side in options.sides}
    cold, agreements = _compared(row, sides)
    seconds = options.seconds or row.seconds
    figures: Measurements = {of.name: {side: [] for side in sides} for of in row.cases}
    limits: list[Figures] = []
    for number in range(options.rounds):
        limits.append({RATE: limit(row, len(options.cores))})
        print(f"{row.name}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for side in list(sides)[:: -1 if number % 2 else 1]:
            for name, case_figures in turn(row, side, sides[side], seconds, options.scale).items():
                figures[name][side].append(case_figures)
    ours = OURS if OURS in sides else next(iter(sides))
    return {
        "benchmark": f"published/{row.name}",
        "says": f"{row.says}; {row.model.removeprefix('random:')} in {row.dtype}. {row.published}.",
        "settings": _settings(row, options, seconds),
        "machine": describe(),
        "peers": {"vllm": versions(PACKAGES, next(servers.VENV.glob("lib/python*/site-packages"), None))},
        "agreement": agreements,
        "cold start, s": cold,
        "cases": [case(name, bounded(of_sides, limits), ours, COMPARED) for name, of_sides in figures.items()],
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


def _settings(row: Row, options: RunOptions, seconds: float) -> dict[str, Any]:
    preloaded = [path.name for path in servers.preloaded()]
    flags = {f"{OURS} {name}".strip(): " ".join(value) for name, value in row.ours.items()}
    flags |= {f"{VLLM} {name}".strip(): " ".join(value) for name, value in row.vllm.items()}
    return {
        "threads": len(options.cores),
        "rounds": options.rounds,
        "starts": options.rounds,
        "seconds": seconds,
        "scale": options.scale,
        "flags": flags,
        "preloaded in vLLM": preloaded,
    }


def _compared(row: Row, sides: Mapping[str, Launch]) -> tuple[dict[str, float], dict[str, Any]]:
    """Starts every side once and compares its answers; gives seconds to ready by side, and how the answers agree."""
    answered, cold = {}, {}
    for side, launch in sides.items():
        with started(f"{row.name}, {side}", launch) as server:
            cold[side] = round(server.seconds, 1)
            print(f"{row.name}, {side}: ready after {server.seconds:.1f} s", file=sys.stderr, flush=True)
            answered[side] = answers(row, server.url)
    agreements = compared(answered, reference(row, folder_of(row)))
    for side, cosines in agreements.items():
        print(f"{row.name}, {side}: cosines {cosines}", file=sys.stderr, flush=True)
    return cold, agreements


def turn(row: Row, side: str, launch: Launch, seconds: float, scale: str) -> dict[str, dict[str, float]]:
    """Starts a side, runs all cases of a row against it, and ends it; gives the figures by case."""
    by_case: dict[str, dict[str, float]] = {}
    with started(f"{row.name}, {side}", launch) as server:
        time.sleep(PAUSE)
        for of in row.cases:
            figures = clients(row, of, server, seconds, scale, launch.priority)
            by_case[of.name] = figures | {"start to ready, s": server.seconds} | _memory(server, figures)
            line = ", ".join(f"{name} {value:.4g}" for name, value in list(figures.items())[:6])
            print(f"  {of.name}, {side}: {line}", file=sys.stderr, flush=True)
    return by_case


def clients(
    row: Row, of: Case, server: ReadyServer, seconds: float, scale: str, priority: str = ""
) -> dict[str, float]:
    """Runs the clients of a case in a process of their own and gives their figures. Exits where it fails."""
    wanted = {"row": row.name, "case": of.name, "url": server.url, "seconds": seconds, "scale": scale}
    wanted |= {"priority": priority, "watch": server.pids}
    command = [sys.executable, "-m", "benchmarks.published.driver", json.dumps(wanted)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | modules_of(ROOT), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{row.name}, {of.name}: the clients ended with {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _memory(server: ReadyServer, figures: Mapping[str, float]) -> dict[str, float]:
    """Tells each process's memory at rest, and sums what all processes of the server take."""
    whole = {
        "server: CPU ms/request": sum(figures[f"{name}: CPU ms/request"] for name in server.pids),
        "server: MiB at rest": sum(server.rest.values()),
        "server: peak MiB": sum(figures[f"{name}: peak MiB"] for name in server.pids),
    }
    return {f"{name}: MiB at rest": value for name, value in server.rest.items()} | whole


def main(arguments: argparse.Namespace) -> int:
    """Runs `python -m benchmarks published`."""
    if arguments.cores:
        os.sched_setaffinity(0, map(int, arguments.cores.split(",")))  # the servers and the clients inherit it
    cores = sorted(os.sched_getaffinity(0))
    quick = arguments.quick
    chosen = arguments.row or (QUICK if quick else rows())
    failed: list[str] = []
    for name in chosen:
        row = rows(arguments.scale)[name]
        options = RunOptions(
            scale=arguments.scale,
            rounds=1 if quick else arguments.rounds,
            seconds=QUICK_SECONDS if quick else arguments.seconds,
            cores=cores,
            sides=arguments.side or _sides(row, cores, quick),
        )
        if error := _finish(row, options, None if quick else arguments.out):
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
    return int(bool(failed))


def _finish(row: Row, options: RunOptions, folder: Path | None) -> str:
    """Measures a row, writes its result and prints it. Gives what went wrong, so that the next row is run."""
    try:
        outcome = measured(row, options)
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise  # a signal's, which ends everything
        return error.code
    except (OSError, ValueError) as error:
        return repr(error)
    if folder is not None:
        scale = "" if options.scale == NORMAL else f"-{options.scale}"
        result.write(outcome, folder / f"{row.name}{scale}.json")
    print(f"**{outcome['says']}**\n\n{result.tables(outcome)}\n", flush=True)
    return ""


def _sides(row: Row, cores: Sequence[int], quick: bool) -> list[str]:
    """Names the sides of a row; in `--quick` ours, and vLLM on all cores in its first setting."""
    names = list(launches(row, cores))
    return [OURS, f"{VLLM}, all cores"] if quick else names
