"""MaxSim of one query of 32 rows with documents of 188 rows on average: ours, PyLate, maxsim-cpu; float32.

All sides have the same threads and the same rows in memory; scores are compared before anything is timed. Ours gets
rows end to end, as a step has them; the others a tensor a document.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.benchmark import ALONE, OURS, Figures, Options, Turn
from benchmarks.engine import peer_of
from benchmarks.peers.process import Peer, program_of
from benchmarks.workloads import DOCUMENTS, QUERY, WIDTH, lognormal

OUR_SIDE, RATE, COMPARED = OURS, "documents/s", ("documents/s",)
PEERS = {"maxsim": ("pylate", "maxsim-cpu", "torch")}
OTHERS = ("PyLate rank.rerank", "maxsim-cpu")


def arrays_of(documents: int, seed: int = 1) -> dict[str, Any]:
    """Draws a query [32, 128] and documents' rows [N, 128] of unit length, end to end, with their lengths [S]."""
    lengths, generator = np.array(lognormal(documents, mean=188, sigma=0.6)), np.random.default_rng(seed)
    drawn = {name: generator.standard_normal((n, WIDTH)) for name, n in (("query", QUERY), ("rows", lengths.sum()))}
    unit = {name: array / np.linalg.norm(array, axis=1, keepdims=True) for name, array in drawn.items()}
    return {**{name: array.astype("<f4") for name, array in unit.items()}, "lengths": lengths}


def exact(query: Any, rows: Any, lengths: Any) -> Any:
    """Computes the scores [S] by the definition."""
    return np.array([(document @ query.T).max(axis=0).sum() for document in np.split(rows, np.cumsum(lengths)[:-1])])


def turn(peer: Peer, work: str, documents: int, arguments: Mapping[str, Any]) -> Figures:
    """Scores all documents."""
    return {"documents/s": documents / peer.run(work, **arguments)["seconds"]}


def products(peer: Peer, mean_rows: float) -> Turn:
    """Makes the turn of products alone: documents/s if only the product of rows and query took time."""
    documents = float(peer.outcome("operations")) / (2.0 * QUERY * WIDTH * mean_rows)
    return lambda: {"documents/s": documents / peer.run("operations")["fastest"]}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts all sides; yields their turns for each number of documents.

    Raises AssertionError for scores that differ by more than a thousandth.
    """
    with ExitStack() as cleanup:
        other_python: list[str | Path] = [program_of("maxsim"), "-m", "benchmarks.peers.maxsim_peer"]
        starting = (peer_of(options.threads), Peer(other_python, threads=options.threads))
        engine, peer_libraries = (cleanup.enter_context(process) for process in starting)
        cases: dict[str, dict[str, Turn]] = {}
        for count in DOCUMENTS:
            arrays, file = arrays_of(count), options.folder / f"{count}.npz"
            np.savez(file, **arrays)
            arguments: dict[str, Any] = {"file": str(file)}
            sides = {OURS: (engine, "maxsim"), **{name: (peer_libraries, name) for name in OTHERS}}
            expected = exact(**arrays)
            for name, (peer, work) in sides.items():
                difference = np.abs(peer.outcome(work, **arguments) - expected).max()
                assert difference < 1e-3, f"{name} differs by {difference}"
            timed: dict[str, Turn] = {name: partial(turn, *side, count, arguments) for name, side in sides.items()}
            cases[f"{count:,} documents"] = {**timed, ALONE: products(engine, len(arrays["rows"]) / count)}
        yield cases
