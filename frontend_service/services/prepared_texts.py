"""Texts of a request, within the limits, with all that tokenising them needs. Knows no API and no kind of work."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_threads import TimeSlices
from frontend_service.tokenizing.tokenizer import ModelTokenizer, TokenizedText
from frontend_service.workers.interface import ServedModel
from shared.vectors import InputType


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTexts:
    """Texts, the prompt before each, and how each is cut. `letters`: what tokenising them costs.

    `entry` is what errors call one of them: `texts[{}]`, or `query`. `side`: whether they are queries or documents, for
    models that read the two differently.
    """

    tokenizer: ModelTokenizer
    texts: Sequence[str]
    entry: str
    prompt: str
    cut: Truncation
    side: InputType
    letters: int

    def tokenize(self) -> TimeSlices[TokenizedBatch]:
        """Tokenises the texts for a job."""
        return self.tokenizer.texts(self.texts, self.prompt, self.cut, self.entry, self.side)

    def tokenize_with_offsets(self) -> Iterator[list[TokenizedText]]:
        """Tokenises the texts for a reader: some texts a slice, with the place of each token in its text."""
        return self.tokenizer.text_slices(self.texts, self.prompt, self.cut, self.entry, self.side)


def prepare_texts(
    model: ServedModel,
    limits: Limits,
    texts: Sequence[str],
    entry: str,
    *,
    choice: PromptChoice,
    cut: Truncation,
    side: InputType = InputType.UNSPECIFIED,
    count: int | None = None,
    prompt_field: str = "prompt",
) -> PreparedTexts:
    """Finds the prompt, and checks the texts with it. Raises UnsupportedTask for an unknown prompt, and LimitExceeded.

    `choice`: which prompt goes before the texts. `count`: the most texts, None for `limits.texts`. `prompt_field`: what
    errors call the prompt.
    """
    prompt = model.tokenization.prompt(choice)
    count = limits.texts if count is None else count
    letters = limits.check_texts(texts, entry, count, prompt, prompt_field)
    return PreparedTexts(
        tokenizer=model.tokenization,
        texts=texts,
        entry=entry,
        prompt=prompt,
        cut=limits.with_default(cut),
        side=side,
        letters=letters,
    )
