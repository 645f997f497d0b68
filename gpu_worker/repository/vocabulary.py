"""Checks that a tokenizer belongs to a model's matrix of embeddings, as far as sizes and ordinary text show.

Matrices are padded: the emptiest public ones are ESM C (33 tokens, 64 rows), ByT5 (259 without its spare tokens,
384) and HyenaDNA (12, 16); those for ordinary text DeepSeek (100,015 of 102,400) and Phi-2 (50,295 of 51,200).
"""

from gpu_worker.repository.recipe import Recipe
from gpu_worker.repository.tokenizer import REMEDY, TokenizerFile, TokenizerReader
from shared.card import LateInteraction
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion

LEAST = 0.25
"""Least share of a matrix's rows that must be tokens."""
SENTENCES = {
    "English": "The children walked to the river and waited there for the last boat of the evening.",
    "Chinese": "孩子们走到河边在那里等待傍晚的最后一班船。",
    "Russian": "Дети пошли к реке и ждали там последнюю вечернюю лодку.",
    "Arabic": "ذهب الأطفال إلى النهر وانتظروا هناك آخر قارب في المساء.",
    "Hindi": "बच्चे नदी तक गए और वहाँ शाम की आख़िरी नाव की प्रतीक्षा करने लगे।",
    "Japanese": "子どもたちは川まで歩いて、そこで夕方の最後の船を待ちました。",
    "Korean": "아이들은 강까지 걸어가서 그곳에서 저녁의 마지막 배를 기다렸다.",
    "Hebrew": "הילדים הלכו אל הנהר וחיכו שם לסירה האחרונה של הערב.",
    "Thai": "เด็กๆ เดินไปที่แม่น้ำและรอเรือเที่ยวสุดท้ายของเย็นวันนั้น",
}
"""A sentence in several languages, so that a tokenizer for one script can read at least one."""
ENDS = ("bos", "eos")
"""Roles that transformers' classes give to tokens of their own where the files name none. No text gets them then."""
MOSTLY = 0.5
"""Largest share of a sentence's tokens that may be unknown without a notice."""
SHOWN = 3
"""Number of tokens that a notice names."""


def check(file: TokenizerFile, reader: TokenizerReader, rows: int) -> str:
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
    return "; ".join(notice for notice in (_beyond(vocabulary, rows), _unknown(file, reader)) if notice)


def check_used(recipe: Recipe, late: LateInteraction | None, rows: int) -> None:
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


def _unknown(file: TokenizerFile, reader: TokenizerReader) -> str:
    """Makes a notice for a tokenizer that knows no language, which may be right, for instance for proteins."""
    unknown = file.unknown
    shares = {language: _share(unknown, reader.ids(text)) for language, text in SENTENCES.items()}
    best = min(shares, key=shares.__getitem__)
    if shares[best] <= MOSTLY:
        return ""
    return (
        f"ORDINARY TEXT IS UNKNOWN to its tokenizer: of the tokens of an English sentence {shares['English']:.0%} are "
        f"the unknown one, and no language fares better than {best}, {shares[best]:.0%}; texts of unknown tokens get "
        "the same vectors"
    )


def _share(unknown: int | None, ids: list[int]) -> float:
    """The share of unknown tokens in a sentence; a sentence without tokens counts as unknown."""
    return sum(identity == unknown for identity in ids) / len(ids) if ids else 1.0
