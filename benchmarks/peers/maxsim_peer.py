"""PyLate's rank.rerank and maxsim-cpu on request, in a Python of their own; see `benchmarks/maxsim.py`.

Argument: a .npz file with `query` [q, D], `rows` [N, D] float32 and `lengths` [S].
"""

import sys
from collections.abc import Callable
from typing import Any

import maxsim_cpu
import numpy as np
import torch
from pylate import rank

from benchmarks.laps import Laps
from benchmarks.peers.answering import answer


def sides(query: Any, documents: list[Any]) -> dict[str, Callable[[], Any]]:
    """Each gives the scores of the documents in their order, from a list of arrays as these libraries take them."""
    numbers = [list(range(len(documents)))]

    def pylate() -> Any:
        ranked = rank.rerank(numbers, [torch.from_numpy(query)], [[torch.from_numpy(each) for each in documents]])
        scores = np.empty(len(documents), dtype=np.float32)
        for result in ranked[0]:
            scores[int(result["id"])] = float(result["score"])
        return scores

    return {
        "PyLate rank.rerank": pylate,
        "maxsim-cpu": lambda: np.asarray(maxsim_cpu.maxsim_scores_variable(query, documents)),
    }


if __name__ == "__main__":
    data = np.load(sys.argv[1])
    ends = np.cumsum(data["lengths"])[:-1]
    known = sides(data["query"], [np.ascontiguousarray(each) for each in np.split(data["rows"], ends)])
    answer({name: lambda work=work: work for name, work in known.items()}, Laps())
