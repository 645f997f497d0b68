"""Checks that limits leave room for a text beside special tokens, prompts, markers and the template of a pair.

Where nothing of a text is left, all texts get the same vector or score.
"""

from gpu_worker.repository.late_reading import LengthLimits
from gpu_worker.repository.recipe import ClassifierRecipe, ListwiseRecipe, Recipe
from gpu_worker.repository.tokenizer import TokenizerReader
from shared.card import LateInteraction
from shared.errors import ModelRefused

WORD = "a"
"""The shortest text."""


def check(recipe: Recipe, reader: TokenizerReader, limits: LengthLimits, late: LateInteraction | None) -> None:
    """Checks every limit of a model. Raises ModelRefused for one that leaves no token of a text.

    The refusal names part takes too many tokens, how many, the limit, and the setting that raises it.
    """
    if recipe.listwise:
        _check_block(recipe.listwise, reader, limits)
        return
    classifier = recipe.classifier
    if classifier and classifier.template:
        _check_templates(classifier, reader, limits)
        return
    pairs = classifier is not None and classifier.kind != "tokens"
    special, second = reader.added(pairs), int(pairs)  # the other text of a pair needs a word as well
    words = "a word of each text" if pairs else "a word"
    _check_fits(special + 1 + second, f"special tokens and {words}", limits.usual, _reason(limits))
    for name, prompt in recipe.prompts.items():
        limit, reason = limits.usual, _reason(limits)
        if late and name in ("query", "document"):
            limit = late.query_length if name == "query" else late.document_length
            reason = f"a {name} may have {limit} tokens, see --{name}-length"
        _check_fits(special + len(reader.ids(prompt + WORD)) + second, f"the prompt {name!r} and a word", limit, reason)


def _check_templates(classifier: ClassifierRecipe, reader: TokenizerReader, limits: LengthLimits) -> None:
    for part, template in (
        ("its template", classifier.template),
        ("its template with an instruction", classifier.instructed_template),
    ):
        for mark in ("{query}", "{document}", "{instruction}"):
            template = template.replace(mark, WORD)
        _check_fits(len(reader.ids(template)), f"{part} and a word of each text", limits.usual, _reason(limits))


def _check_block(listwise: ListwiseRecipe, reader: TokenizerReader, limits: LengthLimits) -> None:
    """Checks that a block with an instruction has room for a document of one word."""
    block = listwise.opening + listwise.instruction + listwise.document + listwise.closing
    for mark in ("{count}", "{query}", "{instruction}", "{number}", "{document}"):
        block = block.replace(mark, WORD)
    _check_fits(len(reader.ids(block)), "its block and a word of each text", limits.usual, _reason(limits))


def _check_fits(needed: int, part: str, limit: int, reason: str) -> None:
    if needed > limit:
        raise ModelRefused(f"{part} take {needed} tokens, and {reason}: nothing would be left of a text")


def _reason(limits: LengthLimits) -> str:
    if limits.requested:
        return f"--max-tokens is {limits.requested}"
    remedy = "the model has no more positions" if limits.usual == limits.positions else "--max-tokens raises it"
    return f"a text may have {limits.usual} tokens by its files ({remedy})"
