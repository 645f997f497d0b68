"""Texts of a request, within the limits, with all that tokenising them needs. Knows no API and no kind of work."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.documents import Document
from frontend_service.tokenizing.fair_thread_pool import TimeSlices
from frontend_service.tokenizing.tokenized_text import TokenizedText
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.workers.interface import ServedModel
from shared.vectors import InputType


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTexts:
    """Texts, the prompt before each, and how each is cut. `letters`: what tokenising them costs.

    `entry` is what errors call one of them: `texts[{}]`, or `query`. `input_type`: whether they are queries or
    documents, for models that read the two differently.
    """

    tokenizer: ModelTokenizer
    texts: Sequence[str]
    entry: str
    prompt: str
    cut: Truncation
    input_type: InputType
    letters: int

    def tokenize(self) -> TimeSlices[TokenizedBatch]:
        """Tokenises the texts for a job."""
        return self.tokenizer.texts(self.texts, self.prompt, self.cut, self.entry, self.input_type)

    def tokenize_documents(self, documents: Sequence[Document], overlap: int | None) -> TimeSlices[TokenizedBatch]:
        """Tokenises the texts, which are those of `documents`, with the token ranges of their spans; see
        `DocumentTokenizer`."""
        return self.tokenizer.documents.tokenize(documents, self.prompt, self.cut, self.input_type, overlap)

    def tokenize_with_offsets(self) -> Iterator[list[TokenizedText]]:
        """Tokenises the texts for a reader: some texts a slice, with the place of each token in its text."""
        return self.tokenizer.text_slices(self.texts, self.prompt, self.cut, self.entry, self.input_type)


def prepare_texts(
    model: ServedModel,
    limits: Limits,
    texts: Sequence[str],
    entry: str,
    *,
    choice: PromptChoice,
    cut: Truncation,
    sequence_cut: Truncation | None = None,
    input_type: InputType = InputType.UNSPECIFIED,
    count: int | None = None,
    prompt_field: str = "prompt",
    whole: bool = False,
) -> PreparedTexts:
    """Finds the prompt, and checks the texts with it. Raises UnsupportedTask for an unknown prompt, and LimitExceeded;
    InvalidInput where the model wants an input type and there is none.

    `choice`: which prompt goes before the texts. `sequence_cut`, if there is one, holds beside `cut`. `count`: the most
    texts, None for `limits.texts`. `prompt_field`: what errors call the prompt. `whole`: all of each text is read, even
    of one that may be cut.
    """
    tokenizer = model.tokenizer_of(input_type)
    prompt = tokenizer.prompt(choice)
    count = limits.texts if count is None else count
    # First what each says or leaves to the setting, then both at once: a text is cut where either cuts it. In the other
    # order a `sequence_cut` that says no would also answer for a `cut` that says nothing, against --auto-truncate:
    # test_one_limit_that_says_no_leaves_the_other_to_the_setting (test_auto_truncate.py).
    cut = limits.with_default(cut).within(sequence_cut and limits.with_default(sequence_cut))
    letters = limits.check_texts(texts, entry, count, prompt, prompt_field, cut=bool(cut.truncate) and not whole)
    return PreparedTexts(
        tokenizer=tokenizer,
        texts=texts,
        entry=entry,
        prompt=prompt,
        cut=cut,
        input_type=input_type,
        letters=letters,
    )
