"""The sequences of a step, packed. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker.flight import Part
from gpu_worker.jobs.texts import Member, TextProgress
from gpu_worker.ragged.batch import RaggedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """All sequences of a step, packed in ascending length, and of one length by how much of them is attended to."""

    batch: RaggedBatch
    members: list[tuple[TextProgress, Member]]

    @classmethod
    def of(cls, parts: Sequence[Part], device: torch.device, uncounted: int | None, token_types: bool) -> "Step":
        """Packs the sequences of all parts.

        `uncounted` as in `RaggedBatch.pack`; `token_types`: whether second segments count for the model.
        """
        chosen: list[tuple[TextProgress, list[int]]] = []
        for part in parts:
            assert isinstance(part.progress, TextProgress)
            flat = [index for unit in part.progress.units[part.start : part.stop] for index in unit]
            chosen.append((part.progress, flat))
        sequences = [progress.sequence(index) for progress, indices in chosen for index in indices]
        seconds = [progress.second_segments[index] for progress, indices in chosen for index in indices]
        tails = np.array([progress.tails[index] for progress, indices in chosen for index in indices])
        order = np.lexsort((tails, np.array([len(sequence) for sequence in sequences])))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        members, start = [], 0
        for progress, indices in chosen:
            own = places[start : start + len(indices)]
            members.append((progress, Member(sequences=np.array(indices, dtype=np.int64), places=own)))
            start += len(indices)
        segments = [int(seconds[each]) for each in order] if token_types and any(seconds) else None
        ordered = [sequences[each] for each in order]
        batch = RaggedBatch.pack(ordered, device, uncounted, segments, tails[order].tolist())
        return cls(batch=batch, members=members)
