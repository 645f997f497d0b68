"""Our own engine as a peer, of whatever checkout this file lies in: so two checkouts can take turns.

Arguments: a model, a number format, and tokens of the longest text (0: as the model's files say).
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import ours, products
from benchmarks.peers.answering import answer, texts
from benchmarks.workloads import Ids

Work = Callable[[], npt.ArrayLike]


def sides(name: str, dtype: Any, max_tokens: int) -> dict[str, Callable[..., Work]]:
    """What it can be asked for. `embed` takes in how many jobs the texts come; all at once."""
    engine = ours.Ours(name, dtype=dtype, max_tokens=max_tokens)
    product = products.product(engine.model.placement.dtype)

    def embed(file: str, jobs: int = 1) -> Work:
        all_texts = texts(file)
        return lambda: dense(engine, all_texts, jobs)

    def rerank(file: str) -> Work:
        job = ours.job(texts(file), "rerank")
        return lambda: np.frombuffer(engine.run([job])[0].result.scores, dtype="<f4")

    def encoder(file: str) -> Work:
        all_texts = texts(file)
        return lambda: engine.encoder_seconds(all_texts)

    return {
        "embed": embed,
        "rerank": rerank,
        "encoder": encoder,
        "operations": lambda: product,
        "products": lambda: lambda: product() / engine.linear_flops,  # as tokens
        "maxsim": _maxsim,
    }


def dense(engine: ours.Ours, all_texts: list[Ids], jobs: int) -> npt.NDArray[np.float32]:
    """Unit vectors [S, D] of texts that come in so many jobs."""
    size = -(-len(all_texts) // jobs)
    parts = [all_texts[start : start + size] for start in range(0, len(all_texts), size)]
    answers = engine.run([ours.job(part) for part in parts])
    rows = [each.result.dense.data for each in answers if each.result.dense is not None]
    return np.frombuffer(b"".join(rows), dtype="<f4").reshape(len(all_texts), -1)


def _maxsim(file: str) -> Work:
    """Rows lie end to end, as a step has them."""
    given = np.load(file)
    query, rows = torch.from_numpy(given["query"]), torch.from_numpy(given["rows"])
    scores = ours.maxsim(query, rows, given["lengths"].tolist())
    return lambda: scores().flatten().numpy()


if __name__ == "__main__":
    answer(sides(sys.argv[1], sys.argv[2], int(sys.argv[3])))
