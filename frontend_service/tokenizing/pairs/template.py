"""Pairs as one text, made by a template around both. Works in slices.

A text over the limit is cut in its document and keeps the template's end, since a yes/no reranker answers after it.
"""

from collections.abc import Iterable, Iterator

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.pairs.pairs import JoinedPairs, PairTexts, check_text
from frontend_service.tokenizing.prefix import Need, PrefixReader
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import TruncationSide


class TemplatePairs:
    """Makes pairs in the form of yes/no rerankers."""

    def __init__(self, reader: PrefixReader, card: ModelCard) -> None:
        self._reader = reader
        self._card = card

    def join(self, texts: PairTexts, prompt: str | None, limit: int) -> JoinedPairs:
        """Makes all pairs, each of at most `limit` tokens. `prompt`: the instruction for the template.

        Raises InvalidInput where the template has no place for it, or the beginning of the texts is to be cut off.
        """
        _check_cut_sides(texts)
        before, between, after = self._parts(prompt)
        ending = self._reader.read(after).encoding.ids
        room, need = texts.room(limit, len(ending)), Need(tokens=limit + 1, cut_side=TruncationSide.RIGHT)
        firsts: list[tuple[str, bool]] = []
        for slice_texts in self._within_own_limit(texts.firsts, texts.first_cut, texts.first_entry, limit):
            firsts += slice_texts
            yield None
        column = 0
        for slice_texts in self._within_own_limit(texts.seconds, texts.second_cut, texts.entry, limit):
            for second, second_is_cut in slice_texts:
                for row in range(len(firsts)) if texts.matrix else (column,):
                    first, first_is_cut = firsts[row]
                    read = self._reader.read(before + first + between + second + after, need)
                    ids = read.encoding.ids
                    over = len(ids) > limit
                    if over:
                        texts.check_cut(column, len(ids), limit, whole=read.whole)
                        ids = ids[:room] + ending
                    yield column, row, texts.sequence(column, ids, truncated=over or first_is_cut or second_is_cut)
                column += 1
            yield None

    def _parts(self, instruction: str | None) -> tuple[str, str, str]:
        """The parts of the template: before the query, between the two texts, after the document."""
        if not instruction:
            template = self._card.pair_template
        elif not self._card.instructed_pair_template:
            raise InvalidInput("the model's template has no place for an instruction", field="instruction")
        else:
            template = self._card.instructed_pair_template
        before, _, rest = template.partition("{query}")
        between, _, after = rest.partition("{document}")
        filled = [part.replace("{instruction}", instruction or "") for part in (before, between, after)]
        return filled[0], filled[1], filled[2]

    def _within_own_limit(
        self, texts: Iterable[str], cut: Truncation, entry: str, pair_limit: int
    ) -> Iterator[list[tuple[str, bool]]]:
        """First or second texts within their own limit, each with whether it was cut; some in each slice.

        A text is cut where the last token that stays ends. `entry`: what errors call one of them. Their own limit has
        no effect above `pair_limit`.
        """
        limit = cut.max_tokens
        if limit is None or limit >= pair_limit:
            yield [(text, False) for text in texts]
            return
        number, remaining, need = 0, iter(texts), Need(tokens=limit + 1, cut_side=TruncationSide.RIGHT)
        for reads in self._reader.read_batches(texts, need, offsets=True):
            slice_texts = []
            for read, text in zip(reads, remaining, strict=False):  # the other order would lose a text of each slice
                over = len(read.encoding) > limit
                if over:
                    check_text(cut, limit, len(read.encoding), entry.format(number), whole=read.whole)
                slice_texts.append((text[: read.encoding.offsets[limit - 1][1]] if over else text, over))
                number += 1
            yield slice_texts


def _check_cut_sides(texts: PairTexts) -> None:
    """Raises InvalidInput where the beginning of a text is to be cut off."""
    if TruncationSide.LEFT in (texts.cut.side, texts.first_cut.side, texts.second_cut.side):
        raise InvalidInput(
            "truncation_side is LEFT; the model's template is cut at the end of its document", field="truncation_side"
        )
