"""Scores of packed query and document rows, as a matrix or as pairs. Tensors without I/O."""

import numpy as np
import torch
from torch import Tensor

from gpu_worker.maxsim.packed import maxsim
from gpu_worker.ragged_batch import Counts, to_device


def matrix(queries: Tensor, query_rows: Counts, documents: Tensor, document_rows: Counts, mean: bool) -> Tensor:
    """[Q, S] float32."""
    scores = maxsim(queries, query_rows.tolist(), documents, document_rows.tolist())
    return _averaged(scores, query_rows[:, None], document_rows[None, :]) if mean else scores


def pairs(queries: Tensor, query_rows: Counts, documents: Tensor, document_rows: Counts, mean: bool) -> Tensor:
    """[P] float32: query i with document i."""
    starts, ends = (np.concatenate([[0], np.cumsum(each)]) for each in (query_rows, document_rows))
    scores = [
        maxsim(
            queries[starts[i] : starts[i + 1]],
            [int(query_rows[i])],
            documents[ends[i] : ends[i + 1]],
            [int(document_rows[i])],
        )[0]
        for i in range(len(query_rows))
    ]
    flat = torch.cat(scores)
    return _averaged(flat, query_rows, document_rows) if mean else flat


def _averaged(scores: Tensor, query_rows: Counts, document_rows: Counts) -> Tensor:
    """Scores divided by their query's rows, but for documents without rows."""
    divisors = np.where(document_rows == 0, 1, np.maximum(query_rows, 1)).astype(np.float32)
    return scores / to_device(torch.from_numpy(np.broadcast_to(divisors, scores.shape).copy()), scores.device)
