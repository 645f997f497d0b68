"""PyLate's rank.rerank and maxsim-cpu, in a Python of their own.

Both take a file with `query` [q, D], `rows` [N, D] float32 and `lengths` [S], and give scores [S] from a list of arrays
a document, as these libraries want them.
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
def given(file: str) -> tuple[Any, list[Any]]:
    """The query, and the rows of each document."""
    found = np.load(file)
    documents = np.split(found["rows"], np.cumsum(found["lengths"])[:-1])
    return found["query"], [np.ascontiguousarray(each) for each in documents]


def pylate(file: str) -> Callable[[], Any]:
    """Sorted by PyLate; put back into the order of the documents."""
    query, documents = given(file)
    numbers = [list(range(len(documents)))]

    def scores() -> Any:
        (ranked,) = rank.rerank(numbers, [torch.from_numpy(query)], [[torch.from_numpy(each) for each in documents]])
        found = np.empty(len(documents), dtype=np.float32)
        for result in ranked:
            found[int(result["id"])] = float(result["score"])
        return found

    return scores


def cpu(file: str) -> Callable[[], Any]:
    """maxsim-cpu, for documents of different lengths."""
    query, documents = given(file)
    return lambda: np.asarray(maxsim_cpu.maxsim_scores_variable(query, documents))


if __name__ == "__main__":
    answer({"PyLate rank.rerank": pylate, "maxsim-cpu": cpu})
