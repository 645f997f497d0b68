"""Decides whether texts that begin alike may share their first tokens: the gate's texts, each of which takes some from
other texts of its batch, must give what they give alone.

A layer that looks at more of a text than its attention shows it, as state spaces and convolutions do, gives other
numbers.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.memory import ran_out
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.verify.gate import Reference
from gpu_worker.model.verify.in_pieces import NumberedText, check_run, grouped, reason_against
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.followers import Follower
from gpu_worker.ragged.texts import offsets_of
from gpu_worker.ragged.token_types import Counts, Ids
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

ACCELERATED = "texts share first tokens on processors only"


def reason_to_share_nothing(encoder: Encoder, reference: Reference) -> str:
    """Why texts may share no tokens; empty where they may. May raise what means that memory ran out."""
    if encoder.device.type != "cpu":
        return ACCELERATED  # an H200 took twice the time for texts that share two fifths of their tokens
    packed = encoder.as_written
    if reason_against(packed):
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


def run_sharing(encoder: Encoder, batch: RaggedBatch) -> Tensor:
    """Hidden states [T, H] of the texts of a batch, each of which takes its first tokens from two texts that begin like
    it and go on otherwise, the second of which takes its own from the first."""
    texts = np.split(batch.tokens.astype(np.int32), batch.offsets[1:-1])
    return torch.cat([_run_group(encoder, group) for group in grouped(list(enumerate(texts)))])


def _run_group(encoder: Encoder, texts: list[NumberedText]) -> Tensor:
    """Hidden states of some texts, one after the other."""
    chains = [_chain(number, text, texts) for number, text in texts]
    leaders = [chain[0][0] for chain in chains]
    begins = offsets_of([len(leader) for leader in leaders]).tolist()
    end = begins.pop()
    followers, places = list[Follower](), list[Counts]()
    for begin, ((leader, _), *later) in zip(begins, chains, strict=True):
        rows = np.arange(begin, begin + len(leader))
        for text, count in later:
            followers.append(Follower(sequence=text, shared=rows[:count]))
            rows = np.concatenate([rows[:count], np.arange(end, end + len(text) - count)])
            end += len(text) - count
        places.append(rows)
    step = RaggedBatch.pack(leaders, encoder.device, encoder.uncounted, followers=followers)
    hidden = encoder(step)
    return hidden[torch.from_numpy(np.concatenate(places)).to(hidden.device)]


def _chain(number: int, text: Ids, texts: list[NumberedText]) -> list[tuple[Ids, int]]:
    """Up to three texts, the last of which is `text`, and how many tokens each has from the one before."""
    count = _shared(number, len(text))
    branches = [shared for shared in (count // 2, count) if shared]
    return list(zip([*(_branch(text, shared, texts) for shared in branches), text], [0, *branches], strict=True))


def _branch(text: Ids, count: int, texts: list[NumberedText]) -> Ids:
    """A text as long as `text` that has its first `count` tokens and then another: no longer, since a model may have no
    more positions.

    It goes on with the rest in reverse, or with an id of another text, so every id is one that the model reads.
    """
    rest = text[count:][::-1].copy()
    if rest[0] == text[count]:
        rest[0] = next((other for _, ids in texts for other in ids.tolist() if other != text[count]), rest[0])
    return np.concatenate([text[:count], rest])


def _shared(number: int, length: int) -> int:
    """How many tokens a text shares: one, half of them or all but one, as its number says; none of a text of one
    token."""
    return min(length - 1, (1, (length + 1) // 2, length - 1)[number % 3])
