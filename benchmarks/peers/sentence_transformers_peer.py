"""A model under sentence-transformers, from token ids on, in a Python of its own; argument: the model's folder."""

import sys
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.laps import Laps
from benchmarks.mixes import Texts, read
from benchmarks.peers.answering import answer

Rows = npt.NDArray[np.float32]


class SentenceTransformersPeer:
    """What `encode` does after tokenising: sort by length, longest first, pad each batch, run its modules."""

    def __init__(self, path: str, laps: Laps) -> None:
        self._model = SentenceTransformer(path, device="cpu")
        laps.at(self._model.get_submodule("0.auto_model.encoder.layer").children())

    def embed(self, texts: Texts, batch_size: int) -> Rows:
        """Normalised rows [N, 384] in the order given."""
        order = np.argsort([-len(text) for text in texts], kind="stable")
        rows = np.empty((len(texts), 384), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                batch = _padded([texts[each] for each in chosen])
                rows[chosen] = self._model(batch)["sentence_embedding"].numpy()
        return rows


def _padded(texts: Texts) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = torch.from_numpy(text), 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


if __name__ == "__main__":
    laps = Laps()
    peer = SentenceTransformersPeer(sys.argv[1], laps)
    answer({"float32": lambda texts, batch_size: partial(peer.embed, read(texts), batch_size)}, laps)
