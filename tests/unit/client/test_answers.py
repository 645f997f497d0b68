"""Both clients against a frontend whose answers are scripted: what is sent in parts is joined in order."""

import sys

import numpy as np
import pytest

from selvage import errors
from shared import errors as served
from support.fake_frontend import KINDS, MOST, FakeFrontend, connected, dense_row, score, sparse_row, texts

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(1300)


async def test_a_large_input_is_sent_in_parts_and_joined_in_order(fake: FakeFrontend, kind: str) -> None:
    """Several at a time, as many as allowed, none over the number of texts."""
    fake.seconds, fake.together = 0.05, 2
    async with connected(kind, fake.address, in_flight=2) as client:
        rows = await client.embed(iter(MANY))
    assert rows.dtype == np.float32
    assert np.array_equal(rows, np.stack([dense_row(text) for text in MANY]))
    assert sorted(len(request.texts) for request in fake.asked) == [276, 512, 512]
    assert fake.most_at_once == 2


async def test_one_text_has_no_axis_of_texts(fake: FakeFrontend, kind: str) -> None:
    """Whatever is asked for."""
    async with connected(kind, fake.address) as client:
        assert np.array_equal(await client.embed("quiet"), dense_row("quiet"))
        assert np.array_equal(await client.embed([5, 6]), dense_row([5, 6]))
        assert (await client.embed("quiet", output="sparse")) == sparse_row("quiet")
        assert (await client.embed("quiet", output="multi_vector")).shape == (5, 3)
        assert (await client.embed("quiet", output="sparse", sparse_format="csr")).shape == (1, 1000)
        assert (await client.classify("quiet")).scores.tolist() == [5.0, -5.0]
        assert (await client.tokenize("quiet")).ids.tolist() == list(b"quiet")
        assert (await client.detokenize(list(b"quiet"))) == "quiet"


async def test_many_texts_of_every_kind_come_back_in_order(fake: FakeFrontend, kind: str) -> None:
    """Split over several requests."""
    async with connected(kind, fake.address) as client:
        rows = await client.embed(MANY, output="multi_vector")
        assert [len(row) for row in rows] == [min(len(text), 5) for text in MANY]
        assert (await client.embed(MANY, output="sparse")) == [sparse_row(text) for text in MANY]
        row = (await client.embed(MANY, output="sparse", sparse_format="csr"))[[1200]]
        assert row.shape == (1, 1000)
        assert dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) == sparse_row(MANY[1200])
        ids = [[number, number + 1] for number in range(700)]
        assert np.array_equal(await client.embed(np.array(ids)), np.stack([dense_row(pair) for pair in ids]))
        classes = await client.classify(MANY)
        assert classes.scores[:, 0].tolist() == [len(text) for text in MANY]
        assert set(classes.best) == {"long"}
        tokens = await client.classify_tokens(MANY)
        assert [scored.token_ids.tolist() for scored in tokens] == [list(text.encode()) for text in MANY]
        assert tokens[3].scores.shape == (len(MANY[3]), 1)
        assert ["".join(text.tokens) for text in await client.tokenize(MANY)] == MANY
        assert (await client.detokenize([list(text.encode()) for text in MANY])) == MANY


async def test_a_ranking_of_many_documents_is_one_ranking(fake: FakeFrontend, kind: str) -> None:
    """Places count in all documents, logits order those of one score, ties stay, texts come from the caller."""
    async with connected(kind, fake.address) as client:
        documents = texts(2500)
        ranking = await client.rerank("boats", documents, top_n=40, return_documents=True)
    assert len(fake.asked) == 3
    assert not any(request.return_documents for request in fake.asked)
    best = sorted(range(2500), key=lambda place: (-score("boats", documents[place]), place))[:40]
    assert [ranked.index for ranked in ranking] == best
    assert [ranked.document for ranked in ranking] == [documents[place] for place in best]
    assert [ranked.score for ranked in ranking] == [min(score("boats", documents[place]), MOST) for place in best]


async def test_scores_and_max_sim_are_matrices_or_pairs(fake: FakeFrontend, kind: str) -> None:
    """Blocks of a matrix lie where they belong."""
    queries, documents = texts(3), texts(2100)
    arrays = [np.ones((1 + place % 3, 4)) for place in range(1100)]
    async with connected(kind, fake.address) as client:
        scores = await client.score(queries, documents)
        assert np.array_equal(scores, [[score(query, document) for document in documents] for query in queries])
        assert len(fake.asked) == 2
        pairs = await client.score(documents, documents, pairs=True)
        assert pairs.tolist() == [score(document, document) for document in documents]
        sizes = np.array([len(array) for array in arrays])
        assert np.array_equal(await client.max_sim(arrays[:5], arrays), np.outer(sizes[:5], sizes))
        assert np.array_equal(await client.max_sim(arrays, arrays, pairs=True), sizes**2)
        assert np.array_equal(await client.max_sim(["abc", "d"], arrays[:2]), [[3, 6], [1, 2]])


async def test_what_is_too_large_for_a_reply_comes_in_halves(fake: FakeFrontend, kind: str) -> None:
    """Each as often as it takes; a single text that is too large is told."""
    fake.refuse = lambda request: served.ResultTooLarge("over 64 MiB") if len(request.texts) > 100 else None
    async with connected(kind, fake.address) as client:
        assert np.array_equal(await client.embed(MANY), np.stack([dense_row(text) for text in MANY]))
        fake.refuse = lambda _: served.ResultTooLarge("over 64 MiB")
        with pytest.raises(errors.ResultTooLarge):
            await client.embed(["a", "b"])


async def test_progress_is_shown_on_request(
    fake: FakeFrontend, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the last text, on standard error; else nothing is, and without tqdm the call says what is missing."""
    async with connected(kind, fake.address) as client:
        await client.embed(MANY)
        assert capsys.readouterr() == ("", "")
        await client.embed(MANY, progress=True)
        shown = capsys.readouterr()
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        with pytest.raises(ImportError, match="progress needs tqdm: pip install tqdm"):
            await client.embed(MANY, progress=True)
    assert shown.out == ""
    assert "1300" in shown.err
