"""Decides whether texts that begin alike may share their first tokens: the gate's texts, each of which takes some from
another text of its batch, must give what they give alone.

A layer that looks at more of a text than its attention shows it, as state spaces and convolutions do, gives other
numbers.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.memory import ran_out
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.verify.gate import Reference
from gpu_worker.model.verify.in_pieces import check_run, grouped, reason_against
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.followers import Follower
from gpu_worker.ragged.texts import offsets_of
from gpu_worker.ragged.token_types import Ids
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused


def reason_to_share_nothing(encoder: Encoder, reference: Reference) -> str:
    """Why texts may share no tokens; empty where they may. May raise what means that memory ran out."""
    packed = encoder.as_written
    if not isinstance(packed, PackedEncoder) or reason_against(packed):
        return reason_against(packed)
    try:
        check_run(packed, reference, partial(run_sharing, packed), "with tokens of another text")
        return ""
    except ModelRefused as refused:
        return str(refused)
    except Exception as error:  # foreign code that was not made for this fails anywhere
        if ran_out(error):
            raise
        return f"{type(packed.model).__name__} fails on a text that begins as another: {first_line(error)}"


def run_sharing(encoder: PackedEncoder, batch: RaggedBatch) -> Tensor:
    """Hidden states [T, H] of the texts of a batch, each of which takes its first tokens from a text that begins like
    it and goes on otherwise."""
    texts = np.split(batch.tokens.astype(np.int32), batch.offsets[1:-1])
    return torch.cat([_run_group(encoder, group) for group in grouped(list(enumerate(texts)))])


def _run_group(encoder: PackedEncoder, texts: list[tuple[int, Ids]]) -> Tensor:
    """Hidden states of some texts, one after the other."""
    counts = [_shared(number, len(text)) for number, text in texts]
    # What it goes on with is the text's own rest in reverse, so every id is one that the model reads.
    leaders = [
        np.concatenate([text[:count], text[count:][::-1], text[-1:]])
        for (_, text), count in zip(texts, counts, strict=True)
    ]
    begins = offsets_of([len(leader) for leader in leaders])
    followers = [
        Follower(sequence=text, shared=np.arange(begin, begin + count))
        for (_, text), count, begin in zip(texts, counts, begins[:-1].tolist(), strict=True)
    ]
    step = RaggedBatch.pack(leaders, encoder.device, encoder.uncounted, followers=followers)
    assert step.followers is not None
    return encoder(step).index_select(0, step.followers.rows)


def _shared(number: int, length: int) -> int:
    """How many tokens a text shares: one, half of them or all but one, as its number says; none of a text of one
    token."""
    return min(length - 1, (1, (length + 1) // 2, length - 1)[number % 3])
