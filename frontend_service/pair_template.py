"""Pairs as one text by a template around both. Runs in threads.

A template is cut in its document and keeps its end, since a yes/no reranker answers after it.
"""

from collections.abc import Iterator

from tokenizers import Tokenizer

from frontend_service.pairs import Join, PairSequence, PairTexts, check_side
from frontend_service.requests import Cut
from shared.card import ModelCard
from shared.errors import InvalidInput


class Template:
    """The form of yes/no rerankers."""

    def __init__(self, tokenizer: Tokenizer, card: ModelCard) -> None:
        self._tokenizer = tokenizer
        self._card = card

    def joining(self, texts: PairTexts, prompt: str | None, limit: int) -> Join:
        """`prompt` is the template's instruction. Raises InvalidInput where it has no place for one."""
        before, between, after = self._parts(prompt)
        ending = self._tokenizer.encode(after, add_special_tokens=False).ids
        room = texts.room(limit, len(ending))
        firsts = [self._cut(each, texts.first_cut) for each in texts.firsts]

        def join(start: int, stop: int) -> Iterator[tuple[int, int, PairSequence]]:
            seconds = [self._cut(each, texts.second_cut) for each in texts.seconds[start:stop]]
            for column, (second, second_cut) in enumerate(seconds, start):
                rows = range(len(firsts)) if texts.matrix else (column,)
                for row in rows:
                    first, first_cut = firsts[row]
                    ids = self._tokenizer.encode(
                        before + first + between + second + after, add_special_tokens=False
                    ).ids
                    over = len(ids) > limit
                    if over:
                        texts.check_cut(column, len(ids), limit)
                        ids = ids[:room] + ending
                    yield column, row, texts.sequence(column, ids, truncated=over or first_cut or second_cut)

        return join

    def _parts(self, instruction: str | None) -> tuple[str, str, str]:
        """The template before the query, between, and after the document."""
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

    def _cut(self, text: str, cut: Cut) -> tuple[str, bool]:
        """Within the limit of its side, cut where its last token ends; and whether it was cut."""
        if cut.max_tokens is None:
            return text, False
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if len(encoding) <= cut.max_tokens:
            return text, False
        check_side(cut, len(encoding))
        return text[: encoding.offsets[cut.max_tokens - 1][1]], True
