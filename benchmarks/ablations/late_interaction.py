"""(d) MaxSim ragged on the worker, against padded batches, pairs one by one, and token vectors sent to the client.

All begin with a step's rows [T, 128] float32 where the step left them, and end with the scores on the host; but for
the last two, which end at the client: there the vectors are packed, serialised, parsed and compared in numpy. One hop
is counted, without a network; through a frontend there are two. What goes over it is counted in bytes.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import figures
from benchmarks.ablations import lengths
from benchmarks.ablations.ablation import Ablation, Published
from benchmarks.ablations.case import Array, Case
from benchmarks.ablations.conditions import Conditions
from gpu_worker.maxsim import choice
from gpu_worker.maxsim.comparison import Comparison, MaxSim, Texts
from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout

QUERY, WIDTH, BATCH = 32, 128, 64
RAGGED, PADDED, PAIRS = "ragged, on the worker", f"padded batches of {BATCH}", "pairs one by one, in numpy"
CLIENT, CLIENT_HALF = "vectors to the client, float32", "vectors to the client, float16"
TYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    CLIENT: ("DATA_TYPE_FLOAT32", np.dtype("<f4")),
    CLIENT_HALF: ("DATA_TYPE_FLOAT16", np.dtype("<f2")),
}
"""As the contract calls it (vectors.proto), and numpy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """A query [32, 128] and documents' rows [T, 128] of unit length on the device, end to end; `lengths` [S]."""

    query: Tensor
    rows: Tensor
    lengths: Counts

    @classmethod
    def of(cls, found: Counts, seed: int, device: torch.device) -> "Rerank":
        """Random rows."""
        generator = torch.Generator().manual_seed(seed)
        made = (torch.randn(count, WIDTH, generator=generator) for count in (QUERY, int(found.sum())))
        query, rows = (F.normalize(each, dim=1).to(device) for each in made)
        return cls(query=query, rows=rows, lengths=found)

    def ragged(self, maxsim: MaxSim) -> list[Array]:
        """As a step has it, rows read in place."""
        texts, asked = Texts.end_to_end(self.lengths), Texts.end_to_end(np.array([QUERY]))
        comparison = Comparison(queries=asked, documents=texts, layout=Layout.MATRIX)
        return [maxsim(self.query, self.rows, [comparison]).cpu().numpy()]

    def padded(self) -> list[Array]:
        """Documents as they come, each batch padded to its longest; padding belongs to it, as rows lie packed."""
        found = []
        documents = self.rows.split(self.lengths.tolist())
        for start in range(0, len(documents), BATCH):
            rows = torch.nn.utils.rnn.pad_sequence(list(documents[start : start + BATCH]), batch_first=True)
            counts = torch.from_numpy(self.lengths[start : start + BATCH]).to(rows.device)
            absent = torch.arange(rows.shape[1], device=rows.device) >= counts[:, None]
            products = (rows @ self.query.T).masked_fill_(absent[:, :, None], float("-inf"))
            found.append(products.amax(dim=1).sum(dim=1))
        return [torch.cat(found).cpu().numpy()]

    def pairs(self) -> list[Array]:
        """As a frontend would: rows come over once, then a product a document. One BLAS thread: more take longer."""
        query, rows = self.query.cpu().numpy().T, self.rows.cpu().numpy()
        bounds = pairwise([0, *np.cumsum(self.lengths).tolist()])
        with one_blas_thread():
            return [
                np.array([(rows[start:stop] @ query).max(axis=0).sum() for start, stop in bounds], dtype=np.float32)
            ]

    def message(self, name: str) -> bytes:
        """The documents as a MultiVectors message of the contract."""
        from selvage.v1 import vectors_pb2

        written, kind = TYPES[name]
        data = self.rows.cpu().numpy().astype(kind, copy=False).tobytes()
        message = vectors_pb2.MultiVectors(
            data_type=written, dimensions=WIDTH, lengths=self.lengths.tolist(), data=data
        )
        return message.SerializeToString()

    def scored(self, name: str, rows: Array) -> list[Array]:
        """A client's scores: one product over all rows, a maximum a document."""
        products = rows.astype(np.float32, copy=False) @ self.query.cpu().numpy().T
        starts = np.cumsum(self.lengths) - self.lengths
        return [np.maximum.reduceat(products, starts, axis=0).sum(axis=1)]


@cache
def _blas() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[object]:
    """For products so small that handing them to a second thread takes longer; nothing where it cannot be set."""
    controller = _blas()
    return nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")


def parsed(name: str, message: bytes) -> Array:
    """[T, 128] the rows of a message, in the type that they came in."""
    from selvage.v1 import vectors_pb2

    found = vectors_pb2.MultiVectors.FromString(message)
    return np.frombuffer(found.data, dtype=TYPES[name][1]).reshape(-1, found.dimensions)


def to_client(rerank: Rerank, name: str) -> Callable[[], list[Array]]:
    """The whole way."""
    return lambda: rerank.scored(name, parsed(name, rerank.message(name)))


def case_of(name: str, found: Counts, conditions: Conditions) -> tuple[Case, Rerank]:
    """All variants of one rerank."""
    rerank = Rerank.of(found, conditions.seed, conditions.device)
    maxsim = choice.choose(conditions.device, WIDTH)
    messages = {each: len(rerank.message(each)) for each in TYPES}
    longest = np.maximum.reduceat(found, np.arange(0, len(found), BATCH))
    sizes = np.diff([*range(0, len(found), BATCH), len(found)])
    scores = {"bytes_sent": 4 * len(found)}
    case = Case(
        name=name,
        given={
            "documents": len(found),
            "tokens": int(found.sum()),
            "longest": int(found.max()),
            "query_rows": QUERY,
            "width": WIDTH,
            "dtype": "float32",
            "max_sim": maxsim.name,
        },
        ours=RAGGED,
        variants={
            RAGGED: lambda: rerank.ragged(maxsim),
            PADDED: rerank.padded,
            PAIRS: rerank.pairs,
            CLIENT: to_client(rerank, CLIENT),
            CLIENT_HALF: to_client(rerank, CLIENT_HALF),
        },
        tolerance=1e-3,
        looser={CLIENT_HALF: 2e-2},
        counts={
            RAGGED: scores | {"rows_compared": int(found.sum())},
            PADDED: scores | {"rows_compared": int((longest * sizes).sum())},
            PAIRS: {"bytes_sent": int(found.sum()) * WIDTH * 4, "rows_compared": int(found.sum())},
        }
        | {each: {"bytes_sent": size, "rows_compared": int(found.sum())} for each, size in messages.items()},
    )
    return case, rerank


def stages(rerank: Rerank, name: str, conditions: Conditions) -> dict[str, Any]:
    """Seconds of each part of the client's way."""
    message = rerank.message(name)
    rows = parsed(name, message)
    parts: dict[str, Callable[[], object]] = {
        "serialise": lambda: rerank.message(name),
        "parse": lambda: parsed(name, message),
        "score": lambda: rerank.scored(name, rows),
    }
    spent = {part: [conditions.several(work, 1) for _ in range(conditions.rounds)] for part, work in parts.items()}
    return {part: figures.seconds(each) for part, each in spent.items()}


def measure(conditions: Conditions) -> Iterator[dict[str, Any]]:
    size = 250 if conditions.quick else 1000
    shapes = {
        f"1 query x {size:,} documents x 128": np.full(size, 128),
        f"1 query x {size:,} documents, lognormal (mean 126)": lengths.lognormal(size, conditions.seed),
        "1 query x 100 documents x 300": np.full(100, 300),
    }
    for name, found in shapes.items():
        case, rerank = case_of(name, found, conditions)
        outcome = case.measure(conditions)
        for each in TYPES:
            outcome["variants"][each]["figures"] |= stages(rerank, each, conditions)
        yield outcome


ABLATION = Ablation(
    letter="d",
    idea="MaxSim ragged on the worker, against padded batches, pairs one by one, and token vectors to the client",
    how="the same rows, from where a step leaves them to the scores on the host or at the client; one hop, no network",
    measure=measure,
    published=(
        Published(who="vLLM", what="rerank 1,000 documents x 256, encoder included, A100", value=1.14, unit="1/second"),
        Published(
            who="flash-maxsim", what="rerank 1,000 documents x 256, encoder included, A100", value=1.33, unit="1/second"
        ),
        Published(
            who="vLLM main",
            what="MaxSim alone, 1,000 documents, A100",
            value=4.82e-3,
            unit="seconds",
            source="shared/design/late-interaction.md",
        ),
    ),
)
