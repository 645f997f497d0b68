"""The texts that gates compare: ids of the whole vocabulary, special tokens in every place, lengths that tell.

A length tells where attention, or what stands for it, changes: around each window, chunk, block and table of distances
that the config names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch

from gpu_worker.ragged.token_types import Counts, Ids, TokenTypes
from gpu_worker.repository.inputs import WrittenInputs

PLAIN = (5, 40, 1, 17, 17)
"""Short, unequal, and two of one length."""
MORE = (7, 2, 19, 12, 30, 24, 9, 15, 3, 27)
"""Beside them where a text gives few numbers: logits."""
SPECIAL = 9
BOUNDS = re.compile(
    r"window|chunk|block|bucket|max_distance|max_relative|local_attention|local_radius|original_max_position|floor_scale|"
    r"topk$|indexer_budget|conv_kernel|segment_means"
)
NO_BOUNDS = re.compile(r"group|layer|moe|ff|feed_forward|expert|lm_head|multiple|type")
"""Keys that the words above are found in, and that bound no attention."""
ROLES = ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start")
RUNS = 5
"""Of the longest text by the model's own attention; those that only fill a step run once."""
STEP = 16_384
"""Tokens of a step, at most, that is to have more of them than a text may have positions."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What probing may take: `score_bytes` of a layer's scores, as the model's own eager attention makes them, for the
    longest text; `flops` of all texts together, run once."""

    score_bytes: int
    flops: float

    @classmethod
    def of(cls, device: torch.device) -> "Budget":
        """An accelerator that the model has nearly filled leaves little for scores."""
        if device.type == "cpu":
            return PROCESSOR
        free, _ = torch.cuda.mem_get_info(device)
        return replace(ACCELERATOR, score_bytes=min(ACCELERATOR.score_bytes, free // 8))


PROCESSOR, ACCELERATOR = Budget(1 << 30, 1e12), Budget(4 << 30, 1e14)
"""Seconds of either; two cores take half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """`texts` run one by one, and all at once. Of each, the last `tails` tokens are attended to by nobody.

    The first `padded` of them are also run as a padded batch, to see how far the model is from itself. `again` are
    numbers of texts that stand in the batch once more, so that a step has more tokens than a text may have positions.
    The last of them are `written`: texts and pairs that the model's own tokenizer class made, with all its inputs.
    """

    texts: tuple[Ids, ...]
    tails: tuple[int, ...]
    padded: int
    again: tuple[int, ...]
    written: tuple[WrittenInputs, ...] = ()

    @property
    def seconds(self) -> list[int]:
        """Where the second text of each begins (0: nowhere)."""
        return [0] * (len(self.texts) - len(self.written)) + [each.second_segment for each in self.written]

    def inputs(self, number: int) -> Mapping[str, Counts] | None:
        """What the tokenizer gave, [L] by name, of a text that it made."""
        place = number - len(self.texts)
        return self.written[place].inputs if place >= -len(self.written) else None

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(map(len, self.texts))

    @classmethod
    def of(
        cls,
        config: Any,
        positions: int,
        special: Sequence[int] = (),
        flops_per_token: float = 0.0,
        unattended: bool = False,
        limit: int = 1,
        budget: Budget = PROCESSOR,
        types: TokenTypes | None = None,
        written: Sequence[WrittenInputs] = (),
    ) -> "Probes":
        """Those of a model that has so many `positions`.

        `special` are the tokenizer's special ids; `unattended`: whether texts with a tail belong to it; `limit`: tokens
        that a text may have. Lengths that the budget does not allow are left out, and the limit is cut to what it does.
        `types`: those that the model is fed; texts around a bound have the special tokens that types tell apart.
        `written`: what its tokenizer made; of more positions than there are, or of ids beyond the vocabulary: left out.
        """
        generator = np.random.default_rng(0)
        vocabulary, most = int(config.vocab_size), budget.flops / max(flops_per_token, 1.0)
        longest = min(positions, int((budget.score_bytes / 4 / _heads(config)) ** 0.5))

        def random(length: int) -> Ids:
            return generator.integers(0, vocabulary, length, dtype=np.int32)

        texts = [random(length) for length in PLAIN if length <= positions]
        known = sorted(each for each in {*special, *_ids_of(config)} if 0 <= each < vocabulary)
        texts += [_everywhere(random(min(SPECIAL, positions)), identity) for identity in known]
        if len(known) > 1:
            texts.append(np.array(generator.permutation(known)[:positions], dtype=np.int32))
        texts += [] if types is None else [framed for text in texts[:2] if (framed := types.framed(text)) is not text]
        padded = len(texts)
        tripled = 3.0 * int(getattr(config, "hidden_size", 0) or 768)
        left = most - sum(map(len, texts))
        for length in (*dict.fromkeys(_telling(config.to_dict())), limit):
            # Attention makes 4 H L products a pair of tokens, layers make about 24 H^2 L a token.
            affordable = tripled * ((1 + 2 * max(left, 0.0) / tripled) ** 0.5 - 1)
            chosen = int(min(length, longest, affordable)) if length == limit else length
            if 0 < chosen <= min(longest, affordable) and chosen not in map(len, texts):
                texts.append(random(chosen) if types is None else types.framed(random(chosen)))
                left -= chosen + chosen**2 / (2 * tripled)
        tails = [0] * len(texts)
        if unattended:
            last = random(min(40, positions))
            texts, tails = [*texts, last, last[:12]], [*tails, 6, 1]
        usable = [each for each in written if len(each.ids) <= positions and int(each.ids.max()) < vocabulary]
        texts, tails = [*texts, *(each.ids for each in usable)], tails + [0] * len(usable)
        missing, again = positions + 1 - sum(map(len, texts)), []
        if missing <= min(RUNS * most, STEP):
            for number in cycle(range(padded)):
                if missing <= 0:
                    break
                again.append(number)
                missing -= len(texts[number])
        return cls(texts=tuple(texts), tails=tuple(tails), padded=padded, again=tuple(again), written=tuple(usable))

    def notice(self, limit: int) -> str:
        """What a user should know where texts may have more tokens than the longest of these."""
        return f"compared at load with texts of up to {self.longest} tokens, not longer" if limit > self.longest else ""

    def short(self) -> list[Ids]:
        """Those of a few tokens, all of them attended to, that the tokenizer did not make."""
        made = len(self.texts) - len(self.written)
        pairs = zip(self.texts[:made], self.tails[:made], strict=True)
        return [text for text, tail in pairs if len(text) <= max(PLAIN) and not tail]


def head_texts(vocabulary: int, positions: int) -> list[Ids]:
    """Texts for heads, beside those of the encoder."""
    generator = np.random.default_rng(1)
    return [generator.integers(0, vocabulary, min(length, positions), dtype=np.int32) for length in MORE]


def _heads(config: Any) -> int:
    """At least one; families whose layers differ refuse to tell."""
    try:
        return int(config.num_attention_heads or 1)
    except (AttributeError, RuntimeError, TypeError):
        return 1


def _ids_of(config: Any) -> Iterator[int]:
    """Special ids that the config itself names."""
    for role in ROLES:
        named = getattr(config, f"{role}_token_id", None)
        yield from (each for each in (named if isinstance(named, list) else [named]) if isinstance(each, int))


def _everywhere(text: Ids, identity: int) -> Ids:
    """A text with this id at its start, in its middle and at its end."""
    text[[0, len(text) // 2, -1]] = identity
    return text


def _telling(settings: dict[Any, Any]) -> Iterator[int]:
    """Lengths over twice each bound, just over it, at it and just under; bounds of parts count too."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _telling(value)
        elif BOUNDS.search(str(name)) and not NO_BOUNDS.search(str(name)):
            for bound in value if isinstance(value, list) else [value]:
                if isinstance(bound, int) and not isinstance(bound, bool) and bound > 1:
                    yield from (2 * bound + 9, bound + 1, bound, bound - 1)
