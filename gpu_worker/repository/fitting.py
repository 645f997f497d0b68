"""Fits what files say of lengths and tokens to the tokenizer, and the tokenizer to the model.

Settings of late interaction get token ids. Limits must leave room for a text beside special tokens, prompts, markers
and the template of a pair or a message: where nothing of a text is left, all texts get the same vector or score.

A tokenizer belongs to a matrix of embeddings as far as their sizes show. Matrices are padded: the emptiest public ones
are ESM C (33 tokens, 64 rows), ByT5 (259 without its spare tokens, 384) and HyenaDNA (12, 16).
"""

import re
from dataclasses import dataclass, replace

from gpu_worker.repository.late_interaction import PUNCTUATION
from gpu_worker.repository.recipe import Expansion, LateInteractionRecipe, MessageRecipe, Recipe
from gpu_worker.repository.tokenizer import REMEDY, TokenizerFile, TokenizerReader
from shared.card import SPLIT, LateInteraction, message_of
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion

WORD = "a"
"""The shortest text."""
MARKS = re.compile(r"\{(count|query|instruction|number|document)\}")
"""Pattern of the places of texts in the template of a pair or in the block of a listwise reranker."""
LEAST = 0.25
"""Least share of a matrix's rows that must be tokens."""
ENDS = ("bos", "eos")
"""Roles that transformers' classes give to tokens of their own where the files name none. No text gets them then."""
SHOWN = 3
"""Number of tokens that a notice names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimits:
    """Limits for the length of a text, in tokens.

    `usual` holds where no file says more of queries or documents; `requested` is --max-tokens, or 0. `positions` is the
    number of positions of the encoder. `uncounted` is the token id that the encoder gives no position of its own; None
    where positions count every token.
    """

    usual: int
    requested: int
    positions: int
    uncounted: int | None

    @property
    def longest(self) -> int:
        """The length that no text may exceed, in tokens."""
        return self.requested or self.positions

    def __str__(self) -> str:
        return f"--max-tokens is {self.requested}" if self.requested else f"the model has {self.positions} positions"


def resolve(recipe: LateInteractionRecipe, tokenizer: TokenizerFile, limits: LengthLimits) -> LateInteraction:
    """Finds token ids and a length for queries and documents. Raises ModelRefused.

    The model's files may give longer lengths than the model has, and words that are no tokens, which are not skipped;
    the file of --late-interaction may not, but for punctuation.
    """
    lengths = {"query_length": recipe.query_length, "document_length": recipe.document_length}
    for key, length in lengths.items():
        if key in recipe.overridden and length and length > limits.longest:
            raise ModelRefused(f"{recipe.entries[key][1]} {length}: {limits}")
    query_length, document_length = (min(length or limits.usual, limits.longest) for length in lengths.values())
    skipped = tokenizer.ids_of(recipe.skiplist)
    for word in recipe.skiplist if "skiplist_words" in recipe.overridden else ():
        if word not in skipped and word not in PUNCTUATION:
            raise ModelRefused(f"{recipe.entries['skiplist_words'][1]}: the vocabulary has no token {word!r}")
    plain = LateInteraction(
        query_length=query_length,
        document_length=document_length,
        skiplist=tuple(sorted(set(skipped.values()))),
        skip_in_queries=recipe.skip_in_queries,
        skip_in_documents=recipe.skip_in_documents,
    )
    expansion = recipe.expansion
    if expansion is None:
        return plain
    if expansion.length > limits.longest:
        raise ModelRefused(f"{expansion.source}: queries are expanded to {expansion.length} tokens, and {limits}")
    fixed = expansion.strategy is QueryExpansion.FIXED
    return replace(
        plain,
        query_length=expansion.length if fixed else max(query_length, expansion.length),
        query_expansion=expansion.strategy,
        expansion_length=expansion.length,
        expansion_id=_expansion_id(expansion, tokenizer, limits),
        attend_to_expansion=expansion.attend,
    )


def check(recipe: Recipe, reader: TokenizerReader, limits: LengthLimits, late: LateInteraction | None) -> None:
    """Checks every limit of a model. Raises ModelRefused for one that leaves no token of a text.

    The refusal names part takes too many tokens, how many, the limit, and the setting that raises it.
    """
    classifier, listwise = recipe.classifier, recipe.listwise
    written: dict[str, str] = {}
    if listwise:
        written = {"its block": listwise.opening + listwise.instruction + listwise.document + listwise.closing}
    elif classifier and classifier.template:
        instructed = classifier.instructed_template
        written = {"its template": classifier.template, "its template with an instruction": instructed}
    for part, text in written.items():
        needed = sum(len(reader.ids(MARKS.sub(WORD, piece))) for piece in text.split(SPLIT))
        _check_fits(needed, f"{part} and a word of each text", limits.usual, _reason(limits))
    if recipe.message:
        _check_messages(recipe.message, recipe.prompts, reader, limits, late)
    if written or recipe.message:
        return
    pairs = classifier is not None and classifier.kind != "tokens"
    special, second = reader.added(pairs), int(pairs)  # the other text of a pair needs a word as well
    words = "a word of each text" if pairs else "a word"
    _check_fits(special + 1 + second, f"special tokens and {words}", limits.usual, _reason(limits))
    for name, prompt in recipe.prompts.items():
        limit, reason = limits.usual, _reason(limits)
        if late and name in ("query", "document"):
            limit = late.query_length if name == "query" else late.document_length
            reason = f"a {name} may have {limit} tokens, see {name}_length in --late-interaction"
        _check_fits(special + len(reader.ids(prompt + WORD)) + second, f"the prompt {name!r} and a word", limit, reason)


def _check_messages(
    message: MessageRecipe,
    prompts: dict[str, str],
    reader: TokenizerReader,
    limits: LengthLimits,
    late: LateInteraction | None,
) -> None:
    """Checks the messages of a text without a prompt and with each of the model's. Raises ModelRefused."""
    sides = {"query": late.query_length, "document": late.document_length} if late else {}
    texts = [("its message", task, message_of(template, WORD)) for task, template in message.templates.items()]
    for name, prompt in prompts.items():
        for task, template in message.prompted_templates.items() if prompt else ():
            texts.append((f"its message with the prompt {name!r}", task, message_of(template, WORD, prompt)))
    for part, task, text in texts:
        _check_fits(len(reader.framed(text)), f"{part} and a word", sides.get(task, limits.usual), _reason(limits))


def _expansion_id(expansion: Expansion, tokenizer: TokenizerFile, limits: LengthLimits) -> int:
    """The id of the token that the recipe names, else the mask token, else the end token."""
    if expansion.token is not None:
        token_id = tokenizer.ids_of([expansion.token]).get(expansion.token)
        if token_id is None:
            raise ModelRefused(f"{expansion.source}: token {expansion.token!r} is not in the vocabulary")
    else:
        special = tokenizer.special_tokens
        token_id = special.get("mask", special.get("eos"))
        if token_id is None:
            raise ModelRefused(f"{expansion.source}: there is no mask or end token to expand queries with")
    if token_id == limits.uncounted:
        raise ModelRefused(f"{expansion.source}: the model counts no positions for its padding token {token_id}")
    return token_id


def _check_fits(needed: int, part: str, limit: int, reason: str) -> None:
    if needed > limit:
        raise ModelRefused(f"{part} take {needed} tokens, and {reason}: nothing would be left of a text")


def _reason(limits: LengthLimits) -> str:
    if limits.requested:
        return f"--max-tokens is {limits.requested}"
    remedy = "the model has no more positions" if limits.usual == limits.positions else "--max-tokens raises it"
    return f"a text may have {limits.usual} tokens by its files ({remedy})"


def check_vocabulary(file: TokenizerFile, reader: TokenizerReader, rows: int) -> str:
    """Checks a tokenizer against a matrix of `rows` embeddings. Returns a notice for the user, usually empty.

    Raises ModelRefused.
    """
    vocabulary = reader.vocabulary()
    for role, identity in file.special_tokens.items():
        if role not in ENDS:
            _check_row(f"its {role} token", identity, rows)
    for identity in reader.framed("a"):
        _check_row("a token of every text", identity, rows)
    tokens = len({identity for identity in vocabulary.values() if identity < rows})
    if tokens < LEAST * rows:
        raise ModelRefused(
            f"its tokenizer has {tokens} tokens for the model's {rows} embeddings: a vocabulary is cut short, or of "
            f"another model: {REMEDY}"
        )
    return _beyond(vocabulary, rows)


def check_ids(recipe: Recipe, late: LateInteraction | None, rows: int) -> None:
    """Checks the ids that files name in addition to the tokenizer's roles. Raises ModelRefused."""
    if late and late.query_expansion is not QueryExpansion.NONE:
        _check_row("the token that fills up queries", late.expansion_id, rows)
    for identity in (recipe.classifier.yes_no if recipe.classifier else None) or ():
        if identity is not None:
            _check_row("the token that a yes/no reranker scores by", identity, rows)


def _check_row(token: str, identity: int, rows: int) -> None:
    if identity >= rows:
        raise ModelRefused(
            f"{token} has the id {identity}, and the model's embeddings end at {rows - 1}: take a tokenizer of this "
            "model, or train it with as many embeddings (resize_token_embeddings of transformers)"
        )


def _beyond(vocabulary: dict[str, int], rows: int) -> str:
    """Makes a notice of tokens that were added to the tokenizer and never trained."""
    beyond = sorted((identity, token) for token, identity in vocabulary.items() if identity >= rows)
    if not beyond:
        return ""
    shown = ", ".join(f"{token!r} ({identity})" for identity, token in beyond[:SHOWN])
    more = f" and {len(beyond) - SHOWN} more" if len(beyond) > SHOWN else ""
    return (
        f"its tokenizer has tokens beyond the model's {rows} embeddings, and a text with one is refused: {shown}{more}"
    )
