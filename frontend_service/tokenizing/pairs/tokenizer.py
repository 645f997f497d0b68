"""Pairs of texts to token ids, in the form that the model has. Works in slices."""

from array import array
from collections.abc import Sequence

from tokenizers import Tokenizer

from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_thread_pool import TimeSlices
from frontend_service.tokenizing.pairs.pairs import PairSequence, PairTexts
from frontend_service.tokenizing.pairs.segments import SegmentPairs
from frontend_service.tokenizing.pairs.template import TemplatePairs
from frontend_service.tokenizing.prefix import PrefixReader
from frontend_service.tokenizing.untrained_tokens import UntrainedTokens
from shared.card import ModelCard
from shared.jobs import RaggedTokens

SLICE_TOKENS = 4096
"""Tokens of pairs that are made in one slice: a long text may be paired with many small ones."""


class PairTokenizer:
    """Tokenises pairs for one model. Its methods may run in several threads at once."""

    def __init__(self, reader: PrefixReader, framing: Tokenizer, card: ModelCard, untrained: UntrainedTokens) -> None:
        """`reader` reads texts, `framing` puts special tokens around them."""
        self._untrained = untrained
        segments = SegmentPairs(reader, framing, card.truncation_side)
        self._form: SegmentPairs | TemplatePairs = TemplatePairs(reader, card) if card.pair_template else segments

    def tokenize(self, texts: PairTexts, prompt: str | None, limit: int) -> TimeSlices[TokenizedBatch]:
        """Tokenises all pairs, row-major, each to at most `limit` tokens. `prompt` None: the model's default, if any.

        Raises InputTooLong where a pair is over the limit and may not be cut.
        """
        width = len(texts.seconds)
        sequences: list[PairSequence | None] = [None] * (len(texts.firsts) * width if texts.matrix else width)
        total = yielded = 0
        for pair in self._form.join(texts, prompt, limit):
            if pair is None:
                yield total
                continue
            column, row, sequence = pair
            self._untrained.check(sequence.ids, texts.entry.format(column), paired=True)
            sequences[row * width + column if texts.matrix else column] = sequence
            total += len(sequence.ids)
            if total - yielded >= SLICE_TOKENS:
                yield (yielded := total)
        return _packed([sequence for sequence in sequences if sequence is not None])


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
