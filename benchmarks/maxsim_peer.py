"""PyLate's rank.rerank and maxsim-cpu, timed on request in a Python of their own; see `maxsim.py`.

Arguments: a .npz file with `query` [q, D], `rows` [N, D] float32 and `lengths` [S], and the number of threads. A line
on standard input names a side; the answer is one line: {"seconds": ..., "scores": [...] of the first time}. The first
line that comes tells versions by package.
"""

import importlib.metadata
import json
import os
import sys
import time
from typing import Any

THREADS = sys.argv[2]
os.environ |= {"RAYON_NUM_THREADS": THREADS, "OMP_NUM_THREADS": THREADS, "OPENBLAS_NUM_THREADS": THREADS}

import numpy as np  # noqa: E402
import torch  # noqa: E402


def sides(query: Any, documents: list[Any]) -> dict[str, Any]:
    """Each gives the scores of the documents in their order, from a list of arrays as these libraries take them."""
    import maxsim_cpu
    from pylate import rank

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


def main() -> None:
    data = np.load(sys.argv[1])
    torch.set_num_threads(int(THREADS))
    ends = np.cumsum(data["lengths"])[:-1]
    known = sides(data["query"], [np.ascontiguousarray(each) for each in np.split(data["rows"], ends)])
    shown: set[str] = set()
    names = ("pylate", "maxsim-cpu", "torch", "sentence-transformers", "transformers")
    print(json.dumps({name: importlib.metadata.version(name) for name in names}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        start = time.perf_counter()
        scores = known[name]()
        seconds = time.perf_counter() - start
        first = [] if name in shown else scores.tolist()
        shown.add(name)
        print(json.dumps({"seconds": seconds, "scores": first}), flush=True)


if __name__ == "__main__":
    main()
