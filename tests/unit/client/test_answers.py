"""Both clients against a frontend whose answers are scripted: what is sent in parts is joined in order."""

import sys

import numpy as np
import pytest

import selvage
from selvage import errors
from shared import errors as served
from support.fake_frontend import KINDS, MOST, FakeFrontend, connected, dense_row, score, sparse_row, texts

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(1300)


async def test_a_large_input_is_sent_in_parts_and_joined_in_order(fake: FakeFrontend, kind: str) -> None:
    """Several at a time, as many as allowed, none over the number of texts."""
    fake.seconds, fake.together = 0.05, 2
    async with connected(kind, fake.address, in_flight=2) as client:
        found = await client.embed(iter(MANY))
    assert found.dtype == np.float32
    assert np.array_equal(found, np.stack([dense_row(each) for each in MANY]))
    assert sorted(len(each.texts) for each in fake.asked) == [276, 512, 512]
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
        assert [len(each) for each in await client.embed(MANY, output="multi_vector")] == [
            min(len(each), 5) for each in MANY
        ]
        assert (await client.embed(MANY, output="sparse")) == [sparse_row(each) for each in MANY]
        row = (await client.embed(MANY, output="sparse", sparse_format="csr"))[[1200]]
        assert row.shape == (1, 1000)
        assert dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) == sparse_row(MANY[1200])
        ids = [[number, number + 1] for number in range(700)]
        assert np.array_equal(await client.embed(np.array(ids)), np.stack([dense_row(each) for each in ids]))
        classes = await client.classify(MANY)
        assert classes.scores[:, 0].tolist() == [len(each) for each in MANY]
        assert set(classes.best) == {"long"}
        tokens = await client.classify_tokens(MANY)
        assert [each.token_ids.tolist() for each in tokens] == [list(each.encode()) for each in MANY]
        assert tokens[3].scores.shape == (len(MANY[3]), 1)
        assert ["".join(each.tokens) for each in await client.tokenize(MANY)] == MANY
        assert (await client.detokenize([list(each.encode()) for each in MANY])) == MANY


async def test_a_ranking_of_many_documents_is_one_ranking(fake: FakeFrontend, kind: str) -> None:
    """Places count in all documents, logits order those of one score, ties stay, texts come from the caller."""
    async with connected(kind, fake.address) as client:
        documents = texts(2500)
        found = await client.rerank("boats", documents, top_n=40, return_documents=True)
    assert len(fake.asked) == 3
    assert not any(each.return_documents for each in fake.asked)
    best = sorted(range(2500), key=lambda place: (-score("boats", documents[place]), place))[:40]
    assert [each.index for each in found] == best
    assert [each.document for each in found] == [documents[place] for place in best]
    assert [each.score for each in found] == [min(score("boats", documents[place]), MOST) for place in best]


async def test_scores_and_max_sim_are_matrices_or_pairs(fake: FakeFrontend, kind: str) -> None:
    """Blocks of a matrix lie where they belong."""
    queries, documents = texts(3), texts(2100)
    arrays = [np.ones((1 + place % 3, 4)) for place in range(1100)]
    async with connected(kind, fake.address) as client:
        found = await client.score(queries, documents)
        assert np.array_equal(found, [[score(query, each) for each in documents] for query in queries])
        assert len(fake.asked) == 2
        pairs = await client.score(documents, documents, pairs=True)
        assert pairs.tolist() == [score(each, each) for each in documents]
        sizes = np.array([len(each) for each in arrays])
        assert np.array_equal(await client.max_sim(arrays[:5], arrays), np.outer(sizes[:5], sizes))
        assert np.array_equal(await client.max_sim(arrays, arrays, pairs=True), sizes**2)
        assert np.array_equal(await client.max_sim(["abc", "d"], arrays[:2]), [[3, 6], [1, 2]])


async def test_cards_are_told(fake: FakeFrontend, kind: str) -> None:
    """One by name, or all."""
    async with connected(kind, fake.address, model="mine") as client:
        assert (await client.model()).id == "mine"
        assert (await client.model("other")).id == "other"
        assert [each.id for each in await client.models()] == ["one", "two"]


async def test_several_outputs_come_from_one_pass(fake: FakeFrontend, kind: str) -> None:
    """With what they cost; what was not asked for is None."""
    async with connected(kind, fake.address) as client:
        found = await client.embed(MANY, output=["dense", "multi_vector"])
    assert isinstance(found, selvage.Embeddings)
    assert len(fake.asked) == 3
    assert found.sparse is None
    assert found.dense_scales is None
    assert found.token_counts.tolist() == [len(each) for each in MANY]
    assert found.truncated.tolist() == [len(each) > 9 for each in MANY]


async def test_what_is_too_large_for_a_reply_comes_in_halves(fake: FakeFrontend, kind: str) -> None:
    """Each as often as it takes; a single text that is too large is told."""
    fake.refuse = lambda request: served.ResultTooLarge("over 64 MiB") if len(request.texts) > 100 else None
    async with connected(kind, fake.address) as client:
        assert np.array_equal(await client.embed(MANY), np.stack([dense_row(each) for each in MANY]))
        fake.refuse = lambda _: served.ResultTooLarge("over 64 MiB")
        with pytest.raises(errors.ResultTooLarge):
            await client.embed(["a", "b"])


async def test_one_long_pair_makes_one_request_more(fake: FakeFrontend, kind: str) -> None:
    """Each text counts with its own pair."""
    async with connected(kind, fake.address) as client:
        classes = await client.classify(MANY[:300], ["b"] * 299 + ["c" * 300_000])
    assert classes.scores.shape[0] == 300
    assert len(fake.asked) == 2


@pytest.mark.parametrize("tqdm", [True, False])
async def test_progress_is_shown_on_request(
    fake: FakeFrontend, kind: str, tqdm: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the last text, on standard error, with tqdm and without; else nothing is."""
    if not tqdm:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    async with connected(kind, fake.address) as client:
        await client.embed(MANY)
        assert capsys.readouterr() == ("", "")
        await client.embed(MANY, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1300" in shown.err.replace(",", "")
