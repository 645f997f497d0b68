"""A model under sentence-transformers, from token ids on, in a Python of its own; argument: its folder."""

import sys

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.peers.answering import answer, texts

Ids = npt.NDArray[np.int32]


def embed(model: SentenceTransformer, all_texts: list[Ids], batch_size: int) -> npt.NDArray[np.float32]:
    """What `encode` does after tokenising: sort by length, longest first, pad each batch, run its modules.

    Normalised rows [S, 384] in the order given.
    """
    order = np.argsort([-len(each) for each in all_texts], kind="stable")
    rows = np.empty((len(all_texts), 384), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = _padded([all_texts[each] for each in chosen])
            rows[chosen] = model(batch)["sentence_embedding"].numpy()
    return rows


def _padded(some: list[Ids]) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(some), max(map(len, some)), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(some):
        ids[row, : len(text)], mask[row, : len(text)] = torch.from_numpy(text), 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


if __name__ == "__main__":
    loaded = SentenceTransformer(sys.argv[1], device="cpu")

    def make(file: str, batch_size: int = 32) -> object:
        all_texts = texts(file)
        return lambda: embed(loaded, all_texts, batch_size)

    answer({"embed": make})  # type: ignore[dict-item]
