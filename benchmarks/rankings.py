"""Rankings of real texts in each number format, beside sentence-transformers in float32: nothing is timed.

The documents are docstrings of Python's library, NumPy and SciPy (`docstrings.py`), each asked for by its summary; all
are ranked for each query by the dot products of MiniLM's vectors, made from texts by `selvage.Engine`. Late interaction
uses sentence-transformers' conversion of MiniLM: token rows and a projection to 128 numbers, which is drawn, as nobody
trained it. Its reference is MaxSim as numpy writes it out. Distances are 1 - cosine, which shows more digits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer

from benchmarks.benchmark import Figures, Options, Turn, cosines
from benchmarks.docstrings import Docstring, corpus
from benchmarks.our_kernels import formats
from benchmarks.workloads import MINILM, minilm_folder
from embedded.options import EngineOptions
from selvage import Engine

Numbers = npt.NDArray[np.float32]
OUR_SIDE, RATE, COMPARED = "selvage float32", "texts/s", ()
EXACT, GOAL = "sentence-transformers float32", "goal of int8"
SIDES: dict[str, EngineOptions] = {
    OUR_SIDE: {"dtype": "float32"},
    "selvage bfloat16": {"dtype": "bfloat16"},
    "selvage int8": {"dtype": "int8"},
}
INT8_GOAL = {"mean distance": 0.005, "largest distance": 0.01}
TEXTS = 300
"""Documents whose vectors are compared."""
QUERIES, DOCUMENTS = 100, 1000
"""Queries and documents of late interaction."""


class Vectors(NamedTuple):
    """Unit vectors of all summaries, `queries` [Q, D], and of their documents [Q, D]."""

    queries: Numbers
    documents: Numbers

    @property
    def scores(self) -> Numbers:
        """The dot products of all queries with all documents [Q, Q]."""
        scores: Numbers = self.queries @ self.documents.T
        return scores


def sides() -> dict[str, EngineOptions]:
    """Selects the number formats in which this processor makes products."""
    able = {"float32": True, "bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported(), "int8": "int8" in formats()}
    return {name: options for name, options in SIDES.items() if able[options["dtype"]]}


def distances(rows: Numbers, exact: Numbers) -> Figures:
    """Computes 1 - cosine of each row with its exact row, in float64, and how these are distributed."""
    apart = np.maximum(1 - cosines(rows, exact), 0)
    return {"mean distance": apart.mean(), "median": float(np.median(apart)), "largest distance": apart.max()}


def best(scores: Numbers, count: int) -> npt.NDArray[np.intp]:
    """Finds the `count` best documents of each query [Q, count], the best first; equal ones in the documents' order."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def compared(scores: Numbers, exact: Numbers, count: int, word: str) -> Figures:
    """Compares the best `count` documents by scores [Q, D], in which a query's own document has the query's number.

    Shares are in per cent.
    """
    top, expected = best(scores, count), best(exact, count)
    shared = [len(np.intersect1d(*pair)) for pair in zip(top, expected, strict=True)]
    return {
        f"top {word} overlap %": 100 * float(np.mean(shared)) / count,
        f"same top {word}, in order %": 100 * float((top == expected).all(axis=1).mean()),
        "same first document %": 100 * float((top[:, 0] == expected[:, 0]).mean()),
        "recall@1 %": 100 * float((top[:, 0] == np.arange(len(top))).mean()),
        "largest difference of a score": float(np.abs(scores - exact).max()),
    }


def max_sim(queries: Sequence[Numbers], documents: Sequence[Numbers]) -> Numbers:
    """Writes MaxSim out: for each row of a query its largest product with a row of the document, summed. [Q, D]."""
    rows, starts = np.concatenate(queries), np.cumsum([0, *map(len, queries)])[:-1]
    columns = [np.add.reduceat((rows @ document.T).max(axis=1), starts) for document in documents]
    return np.stack(columns, axis=1)


def embedded(texts: Sequence[Docstring], options: EngineOptions) -> Vectors:
    """Embeds all texts by an engine of its own."""
    with Engine(MINILM, **options) as engine:
        documents = engine.embed([text.document for text in texts], truncate=True)
        return Vectors(engine.embed([text.summary for text in texts]), documents)


def reference(texts: Sequence[Docstring]) -> Vectors:
    """Embeds all texts by sentence-transformers."""
    encode: Any = SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True).encode
    summaries, documents = ([getattr(text, side) for text in texts] for side in ("summary", "document"))
    return Vectors(encode(summaries, normalize_embeddings=True), encode(documents, normalize_embeddings=True))


def late_reference(texts: Sequence[Docstring], folder: Path) -> Numbers:
    """Computes the scores of late interaction [Q, D] from the rows of sentence-transformers.

    Converts MiniLM as it does, with a drawn projection, and saves that model.
    """
    model: Any = MultiVectorEncoder(str(minilm_folder()), device="cpu", local_files_only=True)
    torch.nn.init.orthogonal_(model[1].linear.weight, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(str(folder), create_model_card=False)
    queries = model.encode_query([text.summary for text in texts[:QUERIES]], convert_to_numpy=True)
    return max_sim(queries, model.encode_document([text.document for text in texts], convert_to_numpy=True))


def late_scores(texts: Sequence[Docstring], folder: Path, options: EngineOptions) -> Numbers:
    """Computes the scores of late interaction [Q, D] by an engine."""
    with Engine(folder, **options) as engine:
        queries = [text.summary for text in texts[:QUERIES]]
        scores: Numbers = engine.score(queries, [text.document for text in texts], truncate=True)
        return scores


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Makes all vectors and scores, one side after the other; yields their comparisons as turns."""
    torch.set_num_threads(options.threads)
    texts = corpus(options.quick)
    exact, formats = reference(texts), {name: side | {"threads": options.threads} for name, side in sides().items()}
    vectors = {EXACT: exact} | {name: embedded(texts, side) for name, side in formats.items()}
    folder, late_texts = options.folder / "late", texts[:DOCUMENTS]
    exact_scores = late_reference(late_texts, folder)
    scores = {EXACT: exact_scores} | {name: late_scores(late_texts, folder, side) for name, side in formats.items()}
    near: dict[str, Turn] = {
        name: partial(distances, vectors[name].documents[:TEXTS], exact.documents[:TEXTS]) for name in formats
    }
    yield {
        f"vectors of {min(TEXTS, len(texts))} documents": near | {GOAL: lambda: INT8_GOAL},
        f"{len(texts):,} documents ranked for as many queries": {
            name: partial(compared, side.scores, exact.scores, 10, "ten") for name, side in vectors.items()
        },
        f"late interaction, {len(late_texts):,} documents ranked for {len(exact_scores)} queries": {
            name: partial(compared, side, exact_scores, 3, "three") for name, side in scores.items()
        },
    }
