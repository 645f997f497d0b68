"""Whether texts fit beside what every text of a model has: special tokens, prompts, markers, a pair's template.

Where nothing of a text is left, all texts get one vector or one score.
"""

from gpu_worker.repository.late_reading import Room
from gpu_worker.repository.recipe import ClassifierRecipe, Recipe
from gpu_worker.repository.tokenizer import TokenizerReader
from shared.card import LateInteraction
from shared.errors import ModelRefused

WORD = "a"
"""A text as short as texts may be."""


def check(recipe: Recipe, reader: TokenizerReader, room: Room, late: LateInteraction | None) -> None:
    """Looks for a limit that leaves no token of a text.

    Raises ModelRefused, naming what takes too much, how much, the limit, and the setting that raises it.
    """
    classifier = recipe.classifier
    if classifier and classifier.template:
        _check_templates(classifier, reader, room)
        return
    pairs = classifier is not None and classifier.kind != "tokens"
    special, second = reader.added(pairs), int(pairs)  # a pair's other text has a word as well
    words = "a word of each text" if pairs else "a word"
    _check(special + 1 + second, f"special tokens and {words}", room.usual, _limit(room))
    for name, prompt in recipe.prompts.items():
        limit, told = room.usual, _limit(room)
        if late and name in ("query", "document"):
            limit = late.query_length if name == "query" else late.document_length
            told = f"a {name} may have {limit} tokens, see --{name}-length"
        _check(special + len(reader.ids(prompt + WORD)) + second, f"the prompt {name!r} and a word", limit, told)


def _check_templates(classifier: ClassifierRecipe, reader: TokenizerReader, room: Room) -> None:
    for what, template in (
        ("its template", classifier.template),
        ("its template with an instruction", classifier.instructed_template),
    ):
        for mark in ("{query}", "{document}", "{instruction}"):
            template = template.replace(mark, WORD)
        _check(len(reader.ids(template)), f"{what} and a word of each text", room.usual, _limit(room))


def _check(needed: int, what: str, limit: int, told: str) -> None:
    if needed > limit:
        raise ModelRefused(f"{what} take {needed} tokens, and {told}: nothing would be left of a text")


def _limit(room: Room) -> str:
    if room.asked:
        return f"--max-tokens is {room.asked}"
    remedy = "the model has no more positions" if room.usual == room.positions else "--max-tokens raises it"
    return f"a text may have {room.usual} tokens by its files ({remedy})"
