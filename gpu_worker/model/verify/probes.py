"""The texts that the gates compare: ids of the whole vocabulary, special tokens in every place, revealing lengths.

A length is revealing where the model computes differently beyond it: around each window, chunk, block and table of
distances that the config names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.ragged.batch import RaggedBatch, split_launches
from gpu_worker.ragged.texts import Counts, Ids, TokenTypes
from gpu_worker.repository.tokenizer import WrittenInputs

SHORT_LENGTHS = (5, 40, 1, 17, 17)
"""Lengths of short texts in tokens: unequal ones, and two that are equal."""
HEAD_LENGTHS = (7, 2, 19, 12, 30, 24, 9, 15, 3, 27)
"""Lengths of further texts for heads, since a text has only a few logits to compare."""
TABLE_LENGTHS = (*SHORT_LENGTHS, *HEAD_LENGTHS, 300)
"""Lengths of texts for a static embedding."""
SPECIAL_LENGTH = 9
"""Tokens of a text that shows one special id in several places."""
BOUND_KEYS = re.compile(
    r"window|chunk|block|bucket|max_distance|max_relative|local_attention|local_radius|original_max_position|floor_scale|"
    r"topk$|indexer_budget|conv_kernel|segment_means"
)
"""Keys of a config that bound attention: the model computes differently beyond their value."""
OTHER_KEYS = re.compile(r"group|layer|moe|ff|feed_forward|expert|lm_head|multiple|type")
"""Keys that match `BOUND_KEYS` although they bound no attention."""
ROLES = ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start")
"""Special tokens whose ids a config may give, as `<role>_token_id`."""
RUNS = 5
"""Times that the gate runs the longest text by the model's own attention. Texts that only fill a step run once."""
STEP_TOKENS = 16_384
"""Most tokens of a step that is filled until it has more tokens than a text may have positions."""


@dataclass(frozen=True, slots=True)
class ProbeCosts:
    """What the probes may cost on a device.

    `score_bytes` are the bytes of one layer's attention scores for the longest text, as the model's own eager attention
    makes them. `flops` are those of one run of all texts.
    """

    score_bytes: int
    flops: float

    @classmethod
    def of(cls, device: torch.device) -> "ProbeCosts":
        """The costs that a device can bear; smaller on an accelerator whose memory the model has nearly filled."""
        if device.type == "cpu":
            return PROCESSOR
        free, _ = torch.cuda.mem_get_info(device)
        return replace(ACCELERATOR, score_bytes=min(ACCELERATOR.score_bytes, free // 8))


PROCESSOR, ACCELERATOR = ProbeCosts(1 << 30, 1e12), ProbeCosts(4 << 30, 1e14)
"""What probes may cost: they take some seconds, on a processor of two cores half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Texts that a model runs one by one, and then all in one batch.

    `tails` gives for each of `texts` how many of its last tokens no other token attends to. The first `padded` texts
    also run as a padded batch, which measures the model's padding noise. `again` are numbers of texts that stand in the
    batch twice, so that a step has more tokens than a text may have positions. The last texts are `written`: texts and
    pairs that the model's own tokenizer class made, with all its inputs. `pairs`: the others are pairs, too, cut in
    their middle.
    """

    texts: tuple[Ids, ...]
    tails: tuple[int, ...]
    padded: int = 0
    again: tuple[int, ...] = ()
    written: tuple[WrittenInputs, ...] = ()
    pairs: bool = False

    @property
    def second_segments(self) -> list[int]:
        """For each text, the place where the second text of a pair begins; 0 where there is none."""
        unwritten = self.texts[: len(self.texts) - len(self.written)]
        middles = [len(text) // 2 if self.pairs else 0 for text in unwritten]
        return [*middles, *(inputs.second_segment for inputs in self.written)]

    def inputs(self, number: int) -> Mapping[str, Counts] | None:
        """Inputs [L] by name that the tokenizer made of a text; None for a text that it did not make."""
        place = number - len(self.texts)
        return self.written[place].inputs if place >= -len(self.written) else None

    def batch(self, numbers: Sequence[int], encoder: Encoder, adapters: Sequence[int] = ()) -> RaggedBatch:
        """The texts of these numbers as one batch, in this order, with all that they are fed as. `adapters`: the number
        of the adapter of each, 0 for none; empty: none."""
        seconds = self.second_segments
        return RaggedBatch.pack(
            [self.texts[number] for number in numbers],
            encoder.device,
            encoder.uncounted,
            types=encoder.token_types,
            second_segments=[seconds[number] for number in numbers],
            tails=[self.tails[number] for number in numbers],
            adapters=adapters,
        )

    @property
    def whole(self) -> list[int]:
        """Numbers of the texts without a tail: all their tokens are attended to."""
        return [number for number, tail in enumerate(self.tails) if not tail]

    def one_launch_batch(self, tokens: int, sequences: int, longest: int) -> list[int]:
        """Numbers of texts without a tail that together fit into a batch of this size and take one attention launch.

        At least one token of the batch stays free.
        """
        lengths = [len(text) for text in self.texts]
        usable = [number for number in self.whole if lengths[number] <= longest]
        numbers: list[int] = []
        free_tokens = tokens - 1
        for number in islice(cycle(usable), sequences + len(usable)):  # a round more, since texts too long are skipped
            if lengths[number] <= free_tokens and len(numbers) < sequences:
                numbers.append(number)
                free_tokens -= lengths[number]
        while len(split_launches(np.array(sorted(lengths[number] for number in numbers), dtype=np.int64))) > 1:
            numbers.remove(max(numbers, key=lengths.__getitem__))
        return numbers

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
        costs: ProbeCosts = PROCESSOR,
        types: TokenTypes | None = None,
        written: Sequence[WrittenInputs] = (),
    ) -> "Probes":
        """Makes the probes of a model with so many `positions`.

        `special` are the tokenizer's special ids. `unattended` says whether the model gets texts with tails. `limit` is
        the most tokens that a text may have. Lengths that cost too much are left out; the limit is reduced
        to what it allows. `types` are the token types that the model is fed; texts around a bound then have the special
        tokens by which types are told apart. Of `written`, which the tokenizer made, texts with more tokens than
        positions, or with ids beyond the vocabulary, are left out.
        """
        generator, vocabulary = np.random.default_rng(0), int(config.vocab_size)
        special_ids = sorted(identity for identity in {*special, *_special_ids(config)} if 0 <= identity < vocabulary)
        texts = _short_texts(generator, vocabulary, special_ids, positions)
        texts += [] if types is None else [framed for text in texts[:2] if (framed := types.framed(text)) is not text]
        padded, most_tokens = len(texts), costs.flops / max(flops_per_token, 1.0)
        longest = min(positions, int((costs.score_bytes / 4 / _heads(config)) ** 0.5))
        for length in _longer_lengths(config, [*map(len, texts)], longest, limit, most_tokens):
            text = generator.integers(0, vocabulary, length, dtype=np.int32)
            texts.append(text if types is None else types.framed(text))
        tails = [0] * len(texts)
        if unattended:
            last = generator.integers(0, vocabulary, min(40, positions), dtype=np.int32)
            texts, tails = [*texts, last, last[:12]], [*tails, 6, 1]
        usable = [inputs for inputs in written if len(inputs.ids) <= positions and int(inputs.ids.max()) < vocabulary]
        texts, tails = [*texts, *(inputs.ids for inputs in usable)], tails + [0] * len(usable)
        missing, again = positions + 1 - sum(map(len, texts)), []
        if missing <= min(RUNS * most_tokens, STEP_TOKENS):
            for number in cycle(range(padded)):
                if missing <= 0:
                    break
                again.append(number)
                missing -= len(texts[number])
        return cls(texts=tuple(texts), tails=tuple(tails), padded=padded, again=tuple(again), written=tuple(usable))

    @classmethod
    def of_table(cls, rows: int) -> "Probes":
        """Makes texts of ids of a whole table, in several lengths, for a static embedding."""
        generator = np.random.default_rng(0)
        texts = tuple(generator.integers(0, rows, length, dtype=np.int32) for length in TABLE_LENGTHS)
        return cls(texts=texts, tails=(0,) * len(texts))

    def notice(self, limit: int) -> str:
        """What a user should know where texts may have more tokens than the longest probe; else empty."""
        return f"compared at load with texts of up to {self.longest} tokens, not longer" if limit > self.longest else ""

    def for_heads(self, vocabulary: int, positions: int, *, pairs: bool) -> "Probes":
        """The short ones of these texts, further ones of random ids, since a text has only a few logits to compare, and
        those that the tokenizer made. `pairs`: the others are pairs, too."""
        generator, count = np.random.default_rng(1), len(self.texts) - len(self.written)
        unwritten = zip(self.texts[:count], self.tails[:count], strict=True)
        texts = [text for text, tail in unwritten if len(text) <= max(SHORT_LENGTHS) and not tail]
        lengths = [min(length, positions) for length in HEAD_LENGTHS]
        texts += [generator.integers(0, vocabulary, length, dtype=np.int32) for length in lengths]
        texts += [inputs.ids for inputs in self.written]
        return Probes(texts=tuple(texts), tails=(0,) * len(texts), written=self.written, pairs=pairs)


def _short_texts(
    generator: np.random.Generator, vocabulary: int, special_ids: Sequence[int], positions: int
) -> list[Ids]:
    """Makes texts of ids of the whole vocabulary; of each special id in several places; of all special ids."""
    lengths = [length for length in SHORT_LENGTHS if length <= positions]
    texts: list[Ids] = [generator.integers(0, vocabulary, length, dtype=np.int32) for length in lengths]
    for identity in special_ids:
        text = generator.integers(0, vocabulary, min(SPECIAL_LENGTH, positions), dtype=np.int32)
        text[[0, len(text) // 2, -1]] = identity
        texts.append(text)
    if len(special_ids) > 1:
        texts.append(np.array(generator.permutation(special_ids)[:positions], dtype=np.int32))
    return texts


def _longer_lengths(config: Any, taken: list[int], longest: int, limit: int, most_tokens: float) -> Iterator[int]:
    """Revealing lengths, and the `limit` or what is left for it, as far as texts of them cost too little to matter.
    `taken` are the lengths of the texts before, `longest` is the most that a text may have."""
    thrice_width = 3.0 * int(getattr(config, "hidden_size", 0) or 768)
    tokens_left = most_tokens - sum(taken)
    for length in (*dict.fromkeys(_revealing_lengths(config.to_dict())), limit):
        # For a text of n tokens, L layers of width H take about 24 H^2 L n operations, and attention 4 H L n^2. So
        # the text costs as much as n + n^2 / 6 H tokens without attention; the next line solves that for n.
        affordable = thrice_width * ((1 + 2 * max(tokens_left, 0.0) / thrice_width) ** 0.5 - 1)
        chosen = int(min(length, longest, affordable)) if length == limit else length
        if 0 < chosen <= min(longest, affordable) and chosen not in taken:
            taken.append(chosen)
            tokens_left -= chosen + chosen**2 / (2 * thrice_width)
            yield chosen


def _heads(config: Any) -> int:
    """Reads the number of attention heads; 1 where the config gives none, as in families whose layers differ."""
    try:
        return int(config.num_attention_heads or 1)
    except (AttributeError, RuntimeError, TypeError):
        return 1


def _special_ids(config: Any) -> Iterator[int]:
    """Special ids that the config itself names."""
    for role in ROLES:
        value = getattr(config, f"{role}_token_id", None)
        ids = value if isinstance(value, list) else [value]
        yield from (identity for identity in ids if isinstance(identity, int))


def _revealing_lengths(settings: dict[Any, Any]) -> Iterator[int]:
    """Lists lengths above twice each bound, just above it, at it and just below; bounds of nested configs count too."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _revealing_lengths(value)
        elif BOUND_KEYS.search(str(name)) and not OTHER_KEYS.search(str(name)):
            for bound in value if isinstance(value, list) else [value]:
                if isinstance(bound, int) and not isinstance(bound, bool) and bound > 1:
                    yield from (2 * bound + 9, bound + 1, bound, bound - 1)
