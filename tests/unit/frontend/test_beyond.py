"""A text with a token that the model has no embedding for is refused with its name, the token and the reason."""

import pytest
from fakes import WORDS, card, tokenizer_json
from tokenizers import Tokenizer

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from shared.errors import InvalidInput
from shared.vectors import InputType
from support.chunks import run_to_end

ROWS = len(WORDS)
TEMPLATE = "query : {query} passage {document} z :"


def tokenization(template: str = "", rows: int = ROWS) -> ModelTokenizer:
    """Of a tokenizer with one token more than the model has embeddings."""
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.add_tokens(["<extra>"])
    return ModelTokenizer(tokenizer.to_str().encode(), card(pair_template=template, vocabulary_size=rows))


def embed(made: ModelTokenizer, texts: list[str], side: InputType = InputType.UNSPECIFIED) -> object:
    return made.texts(texts, "", Truncation(), "texts[{}]", side)


def test_the_text_and_the_token_are_named() -> None:
    with pytest.raises(InvalidInput) as raised:
        embed(tokenization(), ["a b", "c <extra> d", "<extra>"])
    assert raised.value.field == "texts[1]"
    assert str(raised.value) == (
        f"texts[1] has the token '<extra>' ({ROWS}), which the tokenizer knows and the model does not: "
        f"its embeddings end at {ROWS - 1}; leave it out"
    )


@pytest.mark.parametrize("matrix", [True, False], ids=["every pair", "one by one"])
@pytest.mark.parametrize("template", ["", TEMPLATE], ids=["segments", "template"])
@pytest.mark.parametrize("where", [("a <extra>", "b"), ("a", "<extra> b")], ids=["first", "second"])
def test_pairs_name_the_second_text(template: str, where: tuple[str, str], matrix: bool) -> None:
    """In either form, whichever of both has the token."""
    texts = PairTexts(
        firsts=[where[0]] if matrix else ["a", where[0]],
        seconds=["c", where[1]],
        matrix=matrix,
        entry="documents[{}]",
        cut=Truncation(),
    )
    place = 0 if matrix and "<" in where[0] else 1
    with pytest.raises(InvalidInput, match=rf"^documents\[{place}\] or its partner has the token '<extra>'") as raised:
        run_to_end(tokenization(template).pairs(texts))
    assert raised.value.field == f"documents[{place}]"


def test_a_vocabulary_beyond_the_matrix_counts_as_well() -> None:
    made = tokenization(rows=ROWS - 1)
    with pytest.raises(InvalidInput, match=f"the token '{WORDS[-1]}'"):
        embed(made, [WORDS[-1]])
    assert embed(made, ["a b"])
