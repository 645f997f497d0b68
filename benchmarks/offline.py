"""The engine against sentence-transformers and ONNX Runtime on MiniLM: three mixes of lengths, one process a peer.

Token ids are prepared on all sides, outputs are compared before anything is timed, rounds are interleaved: each has
every side on every mix. Peers run in a Python of their own (`make peers`) with as many threads and with memory kept as
the worker keeps it; they wait while others run, and time themselves. Batch sizes of "best" sides are chosen for every
mix, in the first start. Everybody is started anew for every few rounds; `starts.py` says what of it counts.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track

from benchmarks import starts, tables
from benchmarks.engine_alone import ours
from benchmarks.laps import Laps
from benchmarks.machine import describe
from benchmarks.minilm import NAME, folder
from benchmarks.mixes import COUNTS, MIXES, Texts, write
from benchmarks.peers.peer import Asked, Peer
from benchmarks.peers.venv import Venv
from benchmarks.rounds import interleaved
from benchmarks.work import Here, Work
from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.device.placement import Placement
from gpu_worker.model.loading import Model, load

RESULT = Path(__file__).parent / "results" / "offline-cpu.json"
EXACT = "sentence-transformers default"
"""The side that the others are compared with."""
SIZES = (1, 2, 4, 8, 16, 32)
QUICK_SIZES = (2, 8, 32)
REFERENCE, ONNX = Venv(name="sentence-transformers"), Venv(name="onnxruntime")
PACKAGES = ("torch", "transformers", "sentence-transformers", "onnxruntime", "onnx", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Somebody who embeds texts: the work of texts in batches of a size. Size 0: it makes batches of its own."""

    work: Callable[[Texts, int], Work]
    batch_sizes: Sequence[int] = (0,)
    difference: float = 1e-5

    def best(self, texts: Texts) -> int:
        """The batch size of its fastest run on half of the texts, of three runs each, in turns."""
        if len(self.batch_sizes) == 1:
            return self.batch_sizes[0]
        works = {size: self.work(texts[::2], size) for size in self.batch_sizes}
        turns = [{size: sum(work.seconds()) for size, work in works.items()} for _ in range(3)]
        return min(works, key=lambda size: min(turn[size] for turn in turns))


def here(model: Model) -> Callable[[Texts, int], Work]:
    """The engine in this process."""
    embed, laps = ours(model), Laps()
    laps.at(model.trunk.model.get_submodule("encoder.layer").children())
    return lambda texts, size: Here(lambda: embed(texts, size), laps)


def theirs(peer: Peer, side: str) -> Callable[[Texts, int], Work]:
    """A peer's side, which gets the texts as a file."""

    def work(texts: Texts, batch_size: int) -> Work:
        file = peer.file(f"{len(texts)} {sum(map(len, texts))} {batch_size}.npz")
        write(texts, file)
        return Asked(peer, side, {"texts": file, "batch_size": batch_size})

    return work


def all_sides(threads: int, sizes: Sequence[int], exported: str, cleanup: ExitStack) -> dict[str, Side]:
    """Everybody, loaded. ONNX Runtime's peer keeps what it exports in that folder; `cleanup` ends the peers."""
    path = folder()
    loading = [
        Peer([venv.python, "-m", f"benchmarks.peers.{module}", path, *more], threads=threads)
        for venv, module, more in (
            (REFERENCE, "sentence_transformers_peer", ()),
            (ONNX, "onnx_peer", (str(threads), exported)),
        )
    ]
    reference, onnx = (cleanup.enter_context(peer) for peer in loading)
    single, half = (load("minilm", Placement.choose("cpu", dtype), max_tokens=512) for dtype in ("float32", "bfloat16"))
    exact = theirs(reference, "float32")
    return {
        "selvage float32": Side(work=here(single)),
        EXACT: Side(work=exact, batch_sizes=(32,)),
        "onnxruntime float32, best batch": Side(work=theirs(onnx, "float32"), batch_sizes=sizes),
        "selvage bfloat16": Side(work=here(half), difference=2e-2),
        "sentence-transformers, best batch": Side(work=exact, batch_sizes=sizes),
        "onnxruntime int8, best batch": Side(work=theirs(onnx, "int8"), batch_sizes=sizes, difference=1.0),
    }


class Case:
    """One mix of lengths: every side's work in its batch size, and how far what it gives is from the exact rows.

    `sizes` by side; those that are not among them are chosen here.
    """

    def __init__(self, mix: str, sides: Mapping[str, Side], count: int, seed: int, sizes: Mapping[str, int]) -> None:
        """Raises AssertionError for a side that gives something else."""
        texts = MIXES[mix](count, seed)
        chosen = {name: side.best(texts) if name not in sizes else sizes[name] for name, side in sides.items()}
        self.works = {name: side.work(texts, chosen[name]) for name, side in sides.items()}
        rows = {name: work.outcome() for name, work in self.works.items()}
        differences = {name: float(np.abs(each - rows[EXACT]).max()) for name, each in rows.items()}
        for name, difference in differences.items():
            assert difference < sides[name].difference, f"{name} differs by {difference}"
        cosines = {name: (each * rows[EXACT]).sum(axis=1) for name, each in rows.items()}
        self.about = {
            "mix": mix,
            "texts": count,
            "tokens": sum(map(len, texts)),
            "longest": max(map(len, texts)),
            "sides": {
                name: {
                    "batch_size": chosen[name] or None,
                    "largest_difference": differences[name],
                    "mean_cosine": round(float(cosines[name].mean()), 6),
                    "lowest_cosine": round(float(cosines[name].min()), 6),
                }
                for name in sides
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one process found: of each mix what there is to say; seconds of all rounds by mix and side."""

    about: Mapping[str, dict[str, Any]]
    times: Mapping[tuple[str, str], starts.Runs]

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Every side's batch size, by mix."""
        return {
            mix: {name: side["batch_size"] or 0 for name, side in about["sides"].items()}
            for mix, about in self.about.items()
        }


def measure(cases: Mapping[str, Case], rounds: int) -> Start:
    """All sides on all mixes in turn, so that a slow minute of the machine is no mix's or side's own."""
    works = {(mix, name): work for mix, case in cases.items() for name, work in case.works.items()}
    return Start(
        about={mix: case.about for mix, case in cases.items()},
        times=interleaved(works, rounds, "rounds"),
    )


def start(
    given: argparse.Namespace, tried: Sequence[int], exported: str, sizes: Mapping[str, Mapping[str, int]]
) -> Start:
    """Everybody loaded, compared and measured once, in this process and its peers."""
    torch.set_num_threads(given.threads)
    keep_freed_memory()  # as the worker does; the peers get the same
    with ExitStack() as cleanup:
        sides = all_sides(given.threads, tried, exported, cleanup)
        cases = {
            mix: Case(mix, sides, given.texts or COUNTS[mix], given.seed, sizes.get(mix, {}))
            for mix in track(given.mixes, description="texts and batch sizes")
        }
        return measure(cases, given.rounds)


def figures_of(about: Mapping[str, Any], times: Mapping[str, starts.Times]) -> dict[str, Any]:
    """One mix for JSON, with the seconds of every side's runs in all starts."""
    return {
        **about,
        "sides": {
            name: {"tokens_per_second": round(about["tokens"] / starts.seconds(times[name]))}
            | side
            | starts.figures(times[name])
            for name, side in about["sides"].items()
        },
        "against": {
            own: {name: starts.against(times[own], times[name]) for name in times if name != own}
            for own in times
            if "selvage" in own
        },
    }


def together(found: Sequence[Start]) -> list[dict[str, Any]]:
    """All mixes for JSON."""
    times = starts.by_side([each.times for each in found])
    return [
        figures_of(about, {name: times[mix, name] for name in about["sides"]}) for mix, about in found[0].about.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline", description=__doc__)
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES), help="default: all")
    parser.add_argument("--texts", type=int, default=0, help="a mix (default: of 4,000 to 8,000 tokens)")
    parser.add_argument("--starts", type=int, default=6, help="of everybody (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved, a start (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"batch sizes {QUICK_SIZES} alone")
    parser.add_argument("--seed", type=int, default=1, help="of the texts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every side (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    arguments = parser.parse_args()
    tried = QUICK_SIZES if arguments.quick else SIZES
    found: list[Start] = []
    with tempfile.TemporaryDirectory() as exported:
        for _ in track(range(arguments.starts), description="starts"):
            found.append(starts.started(start, arguments, tried, exported, found[0].sizes if found else {}))
    outcome = {
        "benchmark": "offline-cpu",
        "workload": {"model": NAME, "seed": arguments.seed},
        "starts": len(found),
        "rounds": arguments.rounds * len(found),
        "batch_sizes": tried,
        "counted": starts.COUNTED,
        "threads": arguments.threads,
        "machine": describe(),
        "peers": {venv.name: venv.versions(PACKAGES) for venv in (REFERENCE, ONNX)},
        "cases": together(found),
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    Console().print(Markdown(tables.offline(outcome)))
