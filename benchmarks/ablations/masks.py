"""(c) Token ids kept on the host for what is settled by ids, against masks made on the device and read back.

Three uses: a late-interaction model's skiplist, lexical weights of BGE-M3, and where a GritLM instruction ends. On a
CPU nothing is really copied there and back; what then remains is numpy against torch on the same memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.ablations import lengths
from benchmarks.ablations.ablation import Ablation, Published
from benchmarks.ablations.case import Array, Case, Variant
from benchmarks.ablations.conditions import Conditions
from gpu_worker.heads import instruction
from gpu_worker.heads import sparse_vectors as sparse
from gpu_worker.heads.skiplist import Keeping
from gpu_worker.ragged.batch import Counts, Ids
from shared.card import LateInteraction
from shared.vectors import InputType

HOST, BACK = "ids stay on the host", "ids to the device, the outcome back"
EACH = "ids stay on the host, a call a sequence"
VOCABULARY = 30_522
SKIPLIST = tuple(range(1996, 5996, 125))
"""As many as there are punctuation marks."""
DROPPED = np.array([0, 100, 101, 102], dtype=np.int32)
MARK = (29_001, 29_002, 29_003)
NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A step's `ids` [T] on the host, where its sequences begin (`offsets` [S + 1]), and a device to compute on."""

    ids: Ids
    offsets: Counts
    device: torch.device

    @classmethod
    def of(cls, found: Counts, seed: int, device: torch.device) -> "Tokens":
        """Random ids; every second sequence that is long enough has an instruction."""
        made = lengths.texts(found, VOCABULARY, seed)
        for text in made[::2]:
            if len(text) > 16:
                text[10 : 10 + len(MARK)] = MARK
        return cls(ids=np.concatenate(made), offsets=np.concatenate([[0], np.cumsum(found)]), device=device)

    @property
    def given(self) -> dict[str, int | str]:
        """For the results file."""
        return {"sequences": len(self.offsets) - 1, "tokens": len(self.ids)}

    def there(self, array: npt.NDArray[Any]) -> Tensor:
        """A copy on the device; on a CPU the same memory."""
        return torch.from_numpy(array).to(self.device)

    def case(self, name: str, host: Variant, back: Variant, copied: tuple[int, int]) -> Case:
        """`copied` are the bytes that go to the device or come from it: in ours, and in the other."""
        return Case(
            name=name,
            given=self.given,
            ours=HOST,
            variants={HOST: host, BACK: back},
            counts={HOST: {"bytes_copied": copied[0]}, BACK: {"bytes_copied": copied[1]}},
        )


def skiplist(tokens: Tokens) -> Case:
    """[T] which tokens have a vector."""
    late = LateInteraction(query_length=32, document_length=512, skiplist=SKIPLIST)
    keeping, skipped = Keeping(late), tokens.there(np.array(SKIPLIST, dtype=np.int32))

    def host() -> list[Array]:
        return [keeping(tokens.ids, tokens.offsets, InputType.DOCUMENT)]

    def back() -> list[Array]:
        return [torch.isin(tokens.there(tokens.ids), skipped).logical_not_().cpu().numpy()]

    return tokens.case("skiplist", host, back, (0, 5 * len(tokens.ids)))


def lexical(tokens: Tokens, seed: int) -> Case:
    """The largest weight of each id of each sequence: (ids, weights) a sequence, from weights [T] on the device."""
    drawn = torch.randn(len(tokens.ids), generator=torch.Generator().manual_seed(seed)).relu_()
    weights, dropped = drawn.to(tokens.device), tokens.there(DROPPED.astype(np.int64))
    owners = np.repeat(np.arange(len(tokens.offsets) - 1), np.diff(tokens.offsets))

    texts = np.split(tokens.ids, tokens.offsets[1:-1])

    def host() -> list[Array]:
        made = sparse.of_tokens(texts, weights.cpu().numpy(), DROPPED, 0)
        return [array for pair in made for array in pair]

    def each() -> list[Array]:
        shares = np.split(weights.cpu().numpy(), tokens.offsets[1:-1])
        made = (sparse.of_tokens([text], share, DROPPED, 0)[0] for text, share in zip(texts, shares, strict=True))
        return [array for pair in made for array in pair]

    def back() -> list[Array]:
        keys = tokens.there(owners * VOCABULARY + tokens.ids)
        known, place = torch.unique(keys, return_inverse=True)
        best = torch.zeros(len(known), device=tokens.device).scatter_reduce_(0, place, weights, reduce="amax")
        kept = (best > 0) & ~torch.isin(known % VOCABULARY, dropped)
        return vectors(known[kept].cpu().numpy(), best[kept].cpu().numpy())

    def vectors(flat: Counts, values: Array) -> list[Array]:
        ends = np.searchsorted(flat // VOCABULARY, np.arange(1, len(tokens.offsets) - 1))
        ids = np.split((flat % VOCABULARY).astype(np.int32), ends)
        return [array for pair in zip(ids, np.split(values, ends), strict=True) for array in pair]

    copied = 4 * len(tokens.ids), 8 * len(tokens.ids) + sum(each.nbytes for each in back())
    case = tokens.case("lexical weights", host, back, copied)
    return replace(case, variants=case.variants | {EACH: each})


def instructions(tokens: Tokens) -> Case:
    """[S] tokens up to and with the mark that ends an instruction, 0 without one."""
    mark, sequences = tokens.there(np.array(MARK, dtype=np.int32)), len(tokens.offsets) - 1
    offsets = tokens.there(tokens.offsets)

    def host() -> list[Array]:
        return [instruction.ends(tokens.ids, tokens.offsets, [MARK])]

    def back() -> list[Array]:
        windows = tokens.there(tokens.ids).unfold(0, len(MARK), 1)
        starts = (windows == mark).all(dim=1).nonzero()[:, 0]
        sequence = torch.searchsorted(offsets, starts, right=True) - 1
        ends = starts + len(MARK)
        whole = ends <= offsets[sequence + 1]
        found = torch.full((sequences,), NOWHERE, device=tokens.device)
        found.scatter_reduce_(0, sequence[whole], (ends - offsets[sequence])[whole], reduce="amin")
        return [found.masked_fill_(found == NOWHERE, 0).cpu().numpy()]

    return tokens.case("instruction ends", host, back, (0, 4 * len(tokens.ids) + 8 * sequences))


def measure(conditions: Conditions) -> Iterator[dict[str, Any]]:
    count = 128 if conditions.accelerated else 16
    tokens = Tokens.of(lengths.lognormal(count, conditions.seed), conditions.seed, conditions.device)
    for case in (skiplist(tokens), lexical(tokens, conditions.seed), instructions(tokens)):
        yield case.measure(conditions)


ABLATION = Ablation(
    letter="c",
    idea="token ids kept on the host for masks, against copies to the device and back",
    how="the worker's own host functions against the same in torch, on one step's ids",
    measure=measure,
    published=(
        Published(
            who="vLLM",
            what="GritLM-7B, 2,000 prompts of 45 tokens at once: the whole service",
            value=13_016,
            unit="tokens/second",
        ),
    ),
)
