"""Batches of texts as rows of a table: each at its place, whoever answers and whatever is wrong with some."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from selvage.bulk import Failed
from selvage.clusters import BatchEmbedding
from shared.errors import InputTooLong
from support.fake_frontend import FakeFrontend, dense_row, sparse_row, texts


@pytest.fixture
def fake() -> Iterator[FakeFrontend]:
    with FakeFrontend() as running:
        yield running


@pytest.fixture
def made(request: pytest.FixtureRequest, fake: FakeFrontend) -> Iterator[Any]:
    """Embeddings of that frontend, closed at the end."""
    opened = []

    def make(**options: Any) -> BatchEmbedding:
        opened.append(BatchEmbedding(**({"target": fake.address} | options)))
        return opened[-1]

    yield make
    for embedding in opened:
        embedding.close()


def refuse_long(request: Any) -> InputTooLong | None:
    """A message with a text of 50 letters and more is refused, naming it."""
    long = [place for place, text in enumerate(getattr(request, "texts", ())) if len(text) >= 50]
    return InputTooLong(f"texts[{long[0]}] has 602 tokens", field=f"texts[{long[0]}]") if long else None


def test_each_text_has_its_row(made: Any) -> None:
    """However batches are cut; all outputs of one pass, and nothing is null."""
    source = texts(40)
    table = made(output=["dense", "sparse"], message_texts=7).table(source)
    assert np.array_equal(np.array(table["dense"].to_pylist()), [dense_row(text) for text in source])
    pairs = zip(table["sparse_ids"].to_pylist(), table["sparse_weights"].to_pylist(), strict=True)
    assert [dict(zip(*pair, strict=True)) for pair in pairs] == [sparse_row(text) for text in source]
    assert table["tokens"].to_pylist() == [len(text) for text in source]
    assert table["reason"].null_count == len(source)


def test_rows_without_a_vector_say_why(made: Any, fake: FakeFrontend) -> None:
    """The others are as ever; the types are those of a batch that is whole, or has no vector at all."""
    fake.refuse = refuse_long
    embedding = made(on_error="null", output=["dense", "multi_vector"], message_texts=4)
    source = ["one", "", "x" * 60, None, "two", 5, " \n", "\udc80", "three"]
    table = embedding.table(source)
    assert table["reason"].to_pylist() == [
        *(None, "EMPTY", "INPUT_TOO_LONG: the text has 602 tokens", "EMPTY", None),
        "column 'text' is of type int, not a string",
        *("EMPTY", "column 'text' has half of a character at 0", None),
    ]
    good = [0, 4, 8]
    for name in embedding.schema.names[:-1]:
        assert [place for place, value in enumerate(table[name].to_pylist()) if value is not None] == good
    assert np.array_equal(np.array(table["dense"].take(good).to_pylist()), [dense_row(source[place]) for place in good])
    assert [len(table["multi_vector"][place].as_py()) for place in good] == [3, 3, 5]
    for empty in (embedding.table(["", None]), embedding.table([])):
        assert empty.schema == table.schema == embedding.schema


def test_the_first_bad_row_is_named(made: Any, fake: FakeFrontend) -> None:
    """By its place and its id; the embedding goes on with other batches."""
    fake.refuse = refuse_long
    embedding = made(id_column="doc")
    line = r"row 1 of a batch of 3, whose doc is 'b': INPUT_TOO_LONG: the text has 602 tokens .*on_error='null'"
    with pytest.raises(ValueError, match=line):
        embedding.table(["one", "x" * 60, "two"], ids=["a", "b", "c"])
    assert embedding.table(["one"], ids=["a"])["dense"].to_pylist() == [dense_row("one").tolist()]


def test_ids_are_given_where_they_are_named(made: Any) -> None:
    """And nowhere else, not even of no rows."""
    for options, ids in (({"id_column": "doc"}, None), ({}, [])):
        with pytest.raises(ValueError, match="`ids` and `id_column` go together"):
            made(**options).table([], ids)


def test_it_asks_as_bulk_unless_told(made: Any, fake: FakeFrontend) -> None:
    """Interactive callers of a shared fleet come first."""
    made()
    made(priority="default", fairness_key="me", key="secret")
    first, second = fake.metadata
    assert first["selvage-priority"] == "bulk"
    assert (second["selvage-priority"], second["selvage-key"]) == ("default", "me")
    assert second["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("options", "kind", "line"),
    [
        ({"target": ()}, ValueError, "either `model` runs in this process, or `target` names services"),
        ({"device": "cuda:0"}, TypeError, ".*'device'"),
        ({"on_error": "skip"}, ValueError, "on_error is 'skip', must be 'raise' or 'null'"),
        ({"output": "words"}, ValueError, "output is 'words'; there are dense, "),
        ({"fingerprint": "f"}, Failed, "the model's fingerprint is , wanted is f"),
        ({"target": "127.0.0.1:1", "patience": 0.1}, Failed, "no target answers; 127.0.0.1:1 says: "),
    ],
)
def test_what_makes_no_sense_is_told_at_once(made: Any, options: Any, kind: type[Exception], line: str) -> None:
    """Before a batch comes, and not as the command would, which has flags."""
    with pytest.raises(kind, match=f"^{line}"):
        made(**options)
