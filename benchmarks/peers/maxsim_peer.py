"""PyLate's rank.rerank and maxsim-cpu, in a Python of their own.

Both take a file with `query` [q, D], `rows` [N, D] float32 and `lengths` [S], and give scores [S] from a list of
arrays, one a document, as these libraries want them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import maxsim_cpu
import numpy as np
import torch
from pylate import rank

from benchmarks.peers.answering import answer


@cache
def read_arrays(file: str) -> tuple[Any, list[Any]]:
    """Reads the query, and the rows of each document."""
    arrays = np.load(file)
    documents = np.split(arrays["rows"], np.cumsum(arrays["lengths"])[:-1])
    return arrays["query"], [np.ascontiguousarray(rows) for rows in documents]


def pylate(file: str) -> Callable[[], Any]:
    """Scores by PyLate, which sorts them; they are put back into the order of the documents."""
    query, documents = read_arrays(file)
    numbers = [list(range(len(documents)))]

    def scores() -> Any:
        (ranked,) = rank.rerank(numbers, [torch.from_numpy(query)], [[torch.from_numpy(rows) for rows in documents]])
        in_order = np.empty(len(documents), dtype=np.float32)
        for result in ranked:
            in_order[int(result["id"])] = float(result["score"])
        return in_order

    return scores


def cpu(file: str) -> Callable[[], Any]:
    """Scores by maxsim-cpu, for documents of different lengths."""
    query, documents = read_arrays(file)
    return lambda: np.asarray(maxsim_cpu.maxsim_scores_variable(query, documents))


if __name__ == "__main__":
    answer(lambda: {"PyLate rank.rerank": pylate, "maxsim-cpu": cpu})
