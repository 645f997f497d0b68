"""Pairs of texts -> token ids, in the form that the model has. Works in slices."""

from array import array
from collections.abc import Sequence

from tokenizers import Tokenizer

from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_threads import Slices
from frontend_service.tokenizing.pairs.pairs import PairSequence, PairTexts
from frontend_service.tokenizing.pairs.segments import SegmentPairs
from frontend_service.tokenizing.pairs.template import TemplatePairs
from frontend_service.tokenizing.prefix import PrefixReader
from frontend_service.tokenizing.untrained_tokens import Beyond
from shared.card import ModelCard
from shared.ragged import RaggedTokens

SLICE_TOKENS = 4096
"""Tokens of pairs that are put together in one slice: small texts may meet a long one many times."""


class PairTokenizer:
    """The pairs of one model as token ids. May run in several threads at once."""

    def __init__(self, reader: PrefixReader, framing: Tokenizer, card: ModelCard, beyond: Beyond) -> None:
        """`reader` reads texts, `framing` puts special tokens around them."""
        self._beyond = beyond
        segments = SegmentPairs(reader, framing, card.truncation_side)
        self._form: SegmentPairs | TemplatePairs = TemplatePairs(reader, card) if card.pair_template else segments

    def tokenize(self, texts: PairTexts, prompt: str | None, limit: int) -> Slices[TokenizedBatch]:
        """Ids of all pairs, row-major, each of at most `limit` tokens. `prompt` None: the model's own, if it has one.

        Raises InputTooLong where a pair is over the limit and may not be cut.
        """
        width = len(texts.seconds)
        done: list[PairSequence | None] = [None] * (len(texts.firsts) * width if texts.matrix else width)
        total = told = 0
        for step in self._form.joined(texts, prompt, limit):
            if step is None:
                yield total
                continue
            column, row, sequence = step
            self._beyond.check(sequence.ids, texts.entry.format(column), paired=True)
            done[row * width + column if texts.matrix else column] = sequence
            total += len(sequence.ids)
            if total - told >= SLICE_TOKENS:
                yield (told := total)
        return _packed([sequence for sequence in done if sequence is not None])


def _packed(sequences: Sequence[PairSequence]) -> TokenizedBatch:
    flat = array("i")
    for sequence in sequences:
        flat.extend(sequence.ids)
    return TokenizedBatch(
        tokens=RaggedTokens.packed(flat, [len(sequence.ids) for sequence in sequences]),
        truncated=tuple(sequence.truncated for sequence in sequences),
        prompt_lengths=(0,) * len(sequences),
        second_segments=tuple(sequence.second_segment for sequence in sequences),
    )
