"""The engine, sentence-transformers, ONNX Runtime and OpenVINO embed the same token ids, each in its number formats.

With MiniLM's real weights, or with random ones of a larger shape (`--shape`). Every side is a process of its own and
waits while others have their turn. Outputs are compared before anything is timed; batch sizes of tuned sides, and how
many batches they compute at a time, are chosen for each mix of lengths. A side that cannot run here is named with its
reason: a format that a processor emulates takes ten times as long, so nobody would choose it.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.benchmark import ALONE, FORMATS, Figures, Options, Turn, cosines, number_format
from benchmarks.docstrings import corpus
from benchmarks.engine import peer_of, products
from benchmarks.machine import ROOT
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer, PeerRefused, modules_of, program_of
from benchmarks.workloads import (
    MAX_TOKENS,
    MINILM,
    ONE_STREAM,
    RANDOM,
    SHAPES,
    Ids,
    minilm_folder,
    minilm_ids,
    mixes,
    token_ids,
)
from harness.random_models import synthetic, writing

RATE, COMPARED = "tokens/s", ("tokens/s",)
PEERS = {
    "sentence-transformers": ("sentence-transformers", "torch"),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino", "nncf"),
}
SIZES, DEFAULT, TUNED = (8, 2, 32), 32, dict[tuple[str, str], dict[str, Any]]()
"""Sizes of batches, of which --quick takes the first; the default size; the best arguments by side and texts, which
later starts use too."""
QUIET = {"NNCF_CI": "1"}
"""Environment in which NNCF reports no use of it."""
DIFFERS = {"float32": 1e-5, "bfloat16": 2e-2}
"""Largest difference allowed in a number of a unit vector; what int8 costs is told by its cosines."""
DOCSTRINGS = 64
"""Real texts among the mixes, for the model with real weights."""
GAIN = 1.4
"""The standard deviation of a random linear layer's output for an input of unit size. At the usual one, about 0.6, the
first token's vector hardly depends on the text, so all cosines would be near 1 even between different texts."""


def texts_of(shape: str, quick: bool) -> dict[str, list[Ids]]:
    """Makes the texts of each mix, as token ids: drawn ones, and docstrings."""
    drawn = {name: token_ids(lengths) for name, lengths in mixes(shape).items()}
    if shape != MINILM:
        return drawn
    return drawn | {"docstrings": minilm_ids([text.document for text in corpus(quick)[:DOCSTRINGS]])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A side: the process that computes it, the sizes of batches to choose from, and whether several may run at a time.

    Without sizes it makes its own batches.
    """

    process: str
    sizes: Sequence[int] = ()
    streams: bool = False


OURS, THEIRS = "selvage", "sentence-transformers"
OUR_SIDE, EXACT = f"{OURS} float32", f"{THEIRS} default"
RUNTIMES = {"ONNX Runtime": ("float32", "int8"), "OpenVINO": ("float32", "bfloat16", "int8")}
"""Runtimes of an exported graph, and their number formats; ONNX Runtime has no bfloat16 on processors."""
SIDES = {
    **{f"{OURS} {dtype}": Side(process=f"{OURS} {dtype}") for dtype in FORMATS},
    EXACT: Side(process=f"{THEIRS} float32", sizes=(DEFAULT,)),
    f"{THEIRS}, best batch": Side(process=f"{THEIRS} float32", sizes=SIZES),
    f"{THEIRS} bfloat16, best batch": Side(process=f"{THEIRS} bfloat16", sizes=SIZES),
    **{
        f"{runtime} {dtype}, best batch": Side(process=f"{runtime} {dtype}", sizes=SIZES, streams=True)
        for runtime, dtypes in RUNTIMES.items()
        for dtype in dtypes
    },
}


def write_random(model: str, folder: Path) -> None:
    """Writes a `random:` shape in sentence-transformers' form, which every peer loads."""
    config, heads = synthetic.shape_of(model.removeprefix(RANDOM))
    config.initializer_range = GAIN * config.hidden_size**-0.5
    writing.write(folder, config, heads, max_tokens=MAX_TOKENS)


def exported(options: Options) -> tuple[Path, Path]:
    """Gives the folder of the model, and that of its graphs for both runtimes; they are made once."""
    model, graphs = options.folder / "model", options.folder / "graphs"
    if options.shape == MINILM:
        model = minilm_folder()
    elif not model.exists():
        write_random(SHAPES[options.shape], model)
    if not graphs.exists():
        for venv, module, argument in (
            ("onnxruntime", "onnx_export", str(model)),
            ("openvino", "runtimes_peer", "convert"),
        ):
            command: list[str | Path] = [program_of(venv), "-m", f"benchmarks.peers.{module}", argument, graphs]
            environment = os.environ | modules_of(ROOT) | QUIET
            subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    return model, graphs


def peer(name: str, threads: int, model: Path, graphs: Path) -> Peer:
    """Starts the process of this name, which is a product and a number format."""
    library, _, dtype = name.rpartition(" ")
    if library == OURS:
        return peer_of(threads, dtype=dtype, model=MINILM if model == minilm_folder() else str(model))
    venv = library.lower().replace(" ", "")
    arguments: list[str | Path] = ["runtimes_peer", venv, graphs, dtype, str(threads)]
    if library == THEIRS:
        arguments = ["sentence_transformers_peer", model, dtype]
    return Peer([program_of(venv), "-m", f"benchmarks.peers.{arguments[0]}", *arguments[1:]], threads=threads)


@contextmanager
def peers(options: Options) -> Iterator[dict[str, Peer]]:
    """Starts the processes, one after the other: our engine measures while it loads. Yields those that can run here.

    The others are put into the options' `absent`, by their sides.
    """
    model, graphs = exported(options)
    with ExitStack() as cleanup:
        running: dict[str, Peer] = {}
        for name in dict.fromkeys(side.process for side in SIDES.values()):
            try:
                running[name] = cleanup.enter_context(peer(name, options.threads, model, graphs))
            except PeerRefused as reason:
                options.absent.update({side: str(reason) for side in SIDES if SIDES[side].process == name})
        yield running


def choices(side: Side, texts: int, streams: int) -> list[dict[str, int]]:
    """Lists the arguments that a side may run so many texts with; `streams` is the most batches at a time."""
    sizes = dict.fromkeys(min(size, texts) for size in side.sizes)
    counts = dict.fromkeys((1, streams if side.streams else 1))
    pairs = ((size, count) for size, count in product(sizes, counts) if count * size <= texts or count == 1)
    return [{"batch_size": size, "streams": count} for size, count in pairs] or [{}]


def fastest(side: str, running: Peer, file: str, among: Sequence[dict[str, int]]) -> dict[str, Any]:
    """Gives the arguments of a side's runs: the fastest of two runs each, in turns."""
    if len(among) > 1 and (side, file) not in TUNED:
        took = [[running.run("embed", 0.0, file=file, **arguments)["seconds"] for arguments in among] for _ in "ab"]
        TUNED[side, file] = among[int(np.argmin(np.min(took, axis=0)))]
    return {"file": file, **TUNED.get((side, file), among[0])}


def compared(running: Mapping[str, Peer], arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Figures]:
    """Computes the mean and the lowest cosine of each side's rows with the exact ones.

    Raises AssertionError for a side that differs by more than its number format does.
    """
    rows = {name: running[SIDES[name].process].outcome("embed", **arguments[name]) for name in arguments}
    figures: dict[str, Figures] = {}
    for name, side_rows in rows.items():
        difference, allowed = float(np.abs(side_rows - rows[EXACT]).max()), DIFFERS.get(number_format(name), 1.0)
        assert difference < allowed, f"{name} differs by {difference}"
        values = cosines(side_rows, rows[EXACT])
        figures[name] = {"mean cosine": float(values.mean()), "lowest cosine": float(values.min())}
    return figures


def turn(running: Peer, texts: int, tokens: int, arguments: Mapping[str, Any], cosine: Figures) -> Figures:
    """Embeds a mix; reports its cosines, and the batches that it ran in, too. A single text has its milliseconds."""
    seconds = running.run("embed", **arguments)["seconds"]
    alone = {"ms": seconds * 1e3} if texts == 1 else {}
    names = {"batch_size": "batch size", "streams": "batches at a time"}
    batches = {name: float(arguments[argument]) for argument, name in names.items() if argument in arguments}
    return {"tokens/s": tokens / seconds, **alone, **cosine, **batches}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts all sides; yields their turns on all mixes, and products alone in each number format."""
    with peers(options) as running:
        ours = {dtype: running[f"{OURS} {dtype}"] for dtype in FORMATS if f"{OURS} {dtype}" in running}
        alone = {ALONE if dtype == "float32" else f"{ALONE}, {dtype}": products(peer) for dtype, peer in ours.items()}
        present = {name: (running[side.process], side) for name, side in SIDES.items() if side.process in running}
        streams = 1 if options.shape in ONE_STREAM else options.threads
        cases: dict[str, dict[str, Turn]] = {}
        for mix, texts in texts_of(options.shape, options.quick).items():
            file, count, tokens = write_texts(texts, options.folder / f"{mix}.npz"), len(texts), sum(map(len, texts))
            arguments = {
                name: fastest(name, peer, file, choices(side, count, streams)[: 1 if options.quick else None])
                for name, (peer, side) in present.items()
            }
            near = compared(running, arguments)
            timed: dict[str, Turn] = {
                name: partial(turn, peer, count, tokens, arguments[name], near[name])
                for name, (peer, _) in present.items()
            }
            cases[f"{count} text{'s' * (count > 1)}, {mix}"] = timed | alone
        yield cases
