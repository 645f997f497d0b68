"""MaxSim on a processor against PyLate, padded batches and maxsim-cpu: one query of 32 rows, ragged documents.

All sides have the same threads and the same float32 rows in memory; scores are compared before anything is timed.
Rounds are interleaved: each has every side with every number of documents. PyLate and maxsim-cpu run in a Python of
their own (`make peers`), which waits meanwhile. Everybody is started anew for every few rounds; `starts.py` says
what of it counts.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track
from sentence_transformers.util.similarity import maxsim as padded_in_chunks
from torch import Tensor

from benchmarks import starts, tables
from benchmarks.machine import describe
from benchmarks.peers.peer import Asked, Peer
from benchmarks.peers.venv import Venv
from benchmarks.rounds import interleaved
from benchmarks.work import Here, Work
from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.maxsim.choice import faster_product
from gpu_worker.maxsim.comparison import Comparison, Texts
from gpu_worker.maxsim.packed import PackedMaxSim
from shared.vectors import Layout

RESULT = Path(__file__).parent / "results" / "maxsim-cpu.json"
VENV = Venv(name="maxsim")
PACKAGES = ("pylate", "maxsim-cpu", "torch", "sentence-transformers", "transformers")
QUERY, WIDTH, MEAN, LONGEST = 32, 128, 188, 512
BATCH = 64
OURS, EXACT = "selvage", "sentence-transformers maxsim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A query [32, 128], documents' rows [N, 128] of unit length, end to end, and their lengths [S]."""

    query: Tensor
    rows: Tensor
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, documents: int, seed: int) -> "Case":
        """Lengths lognormal (sigma 0.6) about a mean of 188, at most 512."""
        generator = np.random.default_rng(seed)
        lengths = np.clip(generator.lognormal(np.log(MEAN) - 0.18, 0.6, documents).round(), 1, LONGEST).astype(int)
        seeded = torch.Generator().manual_seed(seed)
        query, rows = (
            F.normalize(torch.randn(count, WIDTH, generator=seeded), dim=1) for count in (QUERY, int(lengths.sum()))
        )
        return cls(query=query, rows=rows, lengths=lengths)

    def documents(self) -> list[Tensor]:
        """Rows of each document."""
        return list(self.rows.split(self.lengths.tolist()))


def ours(case: Case) -> Callable[[], Tensor]:
    """As a step has them: rows end to end, in place."""
    maxsim = PackedMaxSim(faster_product(WIDTH))
    texts = Texts.end_to_end(case.lengths)
    comparison = Comparison(queries=Texts.end_to_end(np.array([QUERY])), documents=texts, layout=Layout.MATRIX)
    return lambda: maxsim(case.query, case.rows, [comparison])


def ours_from_a_list(case: Case) -> Callable[[], Tensor]:
    """As the peers get them: one array a document, joined first."""
    documents, maxsim = case.documents(), PackedMaxSim(faster_product(WIDTH))
    texts = Texts.end_to_end(case.lengths)
    comparison = Comparison(queries=Texts.end_to_end(np.array([QUERY])), documents=texts, layout=Layout.MATRIX)
    return lambda: maxsim(case.query, torch.cat(documents), [comparison])


def padded(case: Case, by_length: bool) -> Callable[[], Tensor]:
    """Batches of 64 documents, as they come or sorted by length; padded beforehand, which costs them nothing here."""
    order = np.argsort(case.lengths, kind="stable") if by_length else np.arange(len(case.lengths))
    documents = case.documents()
    batches = []
    for start in range(0, len(order), BATCH):
        chosen = [documents[each] for each in order[start : start + BATCH]]
        lengths = torch.tensor([len(each) for each in chosen])
        rows = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        batches.append((rows, torch.arange(rows.shape[1]) >= lengths[:, None]))
    back = torch.from_numpy(np.argsort(order))

    def scores() -> Tensor:
        found = []
        for rows, absent in batches:
            products = rows @ case.query.T
            found.append(products.masked_fill_(absent[:, :, None], float("-inf")).amax(dim=1).sum(dim=1))
        return torch.cat(found)[back]

    return scores


def here(work: Callable[[], Tensor]) -> Here:
    """A side of this process."""
    return Here(lambda: work().flatten().numpy())


@contextmanager
def peers(case: Case, threads: int) -> Iterator[dict[str, Asked]]:
    """The sides that `maxsim_peer.py` has."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "case.npz"
        np.savez(data, query=case.query.numpy(), rows=case.rows.numpy(), lengths=case.lengths)
        with Peer([VENV.python, "-m", "benchmarks.peers.maxsim_peer", data], threads=threads) as peer:
            yield {name: Asked(peer, name, {}) for name in ("PyLate rank.rerank", "maxsim-cpu")}


def all_sides(case: Case, others: Mapping[str, Asked]) -> dict[str, Work]:
    """Everybody, with that case."""
    return {
        "selvage": here(ours(case)),
        "PyLate rank.rerank": others["PyLate rank.rerank"],
        "padded batches": here(padded(case, by_length=False)),
        "padded batches, sorted": here(padded(case, by_length=True)),
        "maxsim-cpu": others["maxsim-cpu"],
        EXACT: here(lambda: padded_in_chunks([case.query], case.documents())),
        "selvage, from a list": here(ours_from_a_list(case)),
    }


def differences_of(sides: Mapping[str, Work]) -> dict[str, float]:
    """The largest of each from sentence-transformers' scores. Raises AssertionError where one is no rounding."""
    exact = sides[EXACT].outcome()
    found = {name: float(np.abs(side.outcome() - exact).max()) for name, side in sides.items()}
    for name, difference in found.items():
        assert difference < 1e-3, f"{name} differs by {difference}"
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one process found: of each number of documents what there is to say and how far each side's scores are from
    the exact ones; seconds of all rounds by number and side."""

    about: Mapping[int, dict[str, Any]]
    differences: Mapping[int, Mapping[str, float]]
    times: Mapping[tuple[int, str], starts.Runs]
    product: str


def start(given: argparse.Namespace) -> Start:
    """All sides with all numbers of documents in turn, so that a slow minute of the machine is no side's own."""
    torch.set_num_threads(given.threads)
    keep_freed_memory()  # as the worker does; the peers get the same
    found = {count: Case.of(count, given.seed) for count in given.documents}
    with ExitStack() as cleanup:
        others = {count: cleanup.enter_context(peers(case, given.threads)) for count, case in found.items()}
        sides = {count: all_sides(case, others[count]) for count, case in found.items()}
        differences = {count: differences_of(each) for count, each in sides.items()}
        works = {(count, name): work for count, each in sides.items() for name, work in each.items()}
        times = interleaved(works, given.rounds, "rounds", at_least=2)
    return Start(
        about={
            count: {"documents": count, "rows": len(case.rows), "longest": int(case.lengths.max())}
            for count, case in found.items()
        },
        differences=differences,
        times=times,
        product=PackedMaxSim(faster_product(WIDTH)).name,
    )


def figures_of(
    about: Mapping[str, Any], differences: Mapping[str, float], times: Mapping[str, starts.Times]
) -> dict[str, Any]:
    """One number of documents for JSON, with the seconds of every side's runs in all starts."""
    return {
        **about,
        "sides": {
            name: {
                "documents_per_second": round(about["documents"] / starts.seconds(measured)),
                "largest_difference": differences[name],
            }
            | starts.figures(measured)
            for name, measured in times.items()
        },
        "against": {name: starts.against(times[OURS], times[name]) for name in times if name != OURS},
    }


def together(found: Sequence[Start]) -> list[dict[str, Any]]:
    """All numbers of documents for JSON."""
    first, times = found[0], starts.by_side([each.times for each in found])
    return [
        figures_of(about, first.differences[count], {name: times[count, name] for name in first.differences[count]})
        for count, about in first.about.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maxsim", description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[250, 1000], help="default: %(default)s")
    parser.add_argument("--starts", type=int, default=5, help="of everybody (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved, a start (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of lengths and rows (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every side (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    arguments = parser.parse_args()
    found = [starts.started(start, arguments) for _ in track(range(arguments.starts), description="starts")]
    outcome = {
        "benchmark": "maxsim-cpu",
        "workload": {"query_rows": QUERY, "dimensions": WIDTH, "mean_length": MEAN, "seed": arguments.seed},
        "starts": arguments.starts,
        "rounds": arguments.rounds * arguments.starts,
        "counted": starts.COUNTED,
        "threads": arguments.threads,
        "product": found[0].product,
        "peers": VENV.versions(PACKAGES),
        "machine": describe(),
        "cases": together(found),
    }
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    Console().print(Markdown(tables.maxsim(outcome)))
