"""Both clients against a frontend whose answers are scripted: splitting, retries, errors, deadlines, metadata."""

import inspect
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_frontend import KINDS, FakeFrontend, connected, dense_row, score, sparse_row, texts

import selvage
from selvage import AsyncClient, Client, errors
from selvage.connection import is_public
from shared import errors as served

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(1300)


@pytest.fixture
def fake() -> Iterator[FakeFrontend]:
    with FakeFrontend() as running:
        yield running


async def test_a_large_input_is_sent_in_parts_and_joined_in_order(fake: FakeFrontend, kind: str) -> None:
    """Several at a time, as many as allowed, none over the number of texts."""
    fake.seconds = 0.05
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
    """Places count in all documents, ties keep their order, texts come from the caller."""
    async with connected(kind, fake.address) as client:
        documents = texts(2500)
        found = await client.rerank("boats", documents, top_n=40, return_documents=True)
    assert len(fake.asked) == 3
    assert not any(each.return_documents for each in fake.asked)
    best = sorted(range(2500), key=lambda place: (-score("boats", documents[place]), place))[:40]
    assert [each.index for each in found] == best
    assert [each.document for each in found] == [documents[place] for place in best]
    assert [each.score for each in found] == [score("boats", documents[place]) for place in best]


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


async def test_a_refusal_is_tried_again_when_it_was_told(fake: FakeFrontend, kind: str) -> None:
    """By the wait of the error, and every part once in the end."""
    fake.refusals += [served.Overloaded("full", retry_after=0.3), served.WorkerUnavailable("gone", retry_after=0.1)]
    start = time.monotonic()
    async with connected(kind, fake.address, in_flight=1) as client:
        found = await client.embed(MANY)
    assert time.monotonic() - start >= 0.4
    assert np.array_equal(found, np.stack([dense_row(each) for each in MANY]))
    assert len(fake.asked) == 5


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (served.Overloaded("full", retry_after=0.01), 3),
        (served.WorkerUnavailable("gone"), 3),
        (served.Overloaded("full", retry_after=0.01), 1),
        (served.InputTooLarge("no room"), 1),
        (served.Internal("a bug"), 1),
        (served.InputTooLong("long", field="texts[0]"), 1),
        (served.UnknownModel("who", field="model"), 1),
        (served.DeadlineExceeded("late"), 1),
    ],
)
async def test_errors_have_their_class_and_tries_are_bounded(
    fake: FakeFrontend, kind: str, error: served.SelvageError, times: int
) -> None:
    """Message, reason, field, wait and request id are the service's."""
    fake.refuse = lambda _: error
    async with connected(kind, fake.address, retries=times - 1) as client:
        with pytest.raises(errors.BY_REASON[error.reason]) as raised:
            await client.embed(["a"])
    found = raised.value
    assert (str(found), found.reason, found.field, found.retry_after) == (
        error.message,
        error.reason,
        error.field,
        error.retry_after,
    )
    assert found.code.name == error.status
    assert found.request_id == fake.metadata[-1]["x-request-id"]
    assert len(fake.asked) == times


async def test_a_bad_text_is_named_by_its_place_in_all_texts(fake: FakeFrontend, kind: str) -> None:
    """And what else is under way is given up."""

    def refuse(request: Any) -> served.SelvageError | None:
        if MANY[1100] in request.texts:
            place = list(request.texts).index(MANY[1100])
            return served.InputTooLong(f"texts[{place}] has 402 tokens", field=f"texts[{place}]")
        return None

    fake.refuse = refuse
    async with connected(kind, fake.address) as client:
        with pytest.raises(errors.InputTooLong, match=r"texts\[1100\] has 402 tokens") as raised:
            await client.embed(MANY)
        assert raised.value.field == "texts[1100]"
        assert (await client.embed(MANY[:5])).shape == (5, 3)


async def test_what_is_too_large_for_a_reply_comes_in_halves(fake: FakeFrontend, kind: str) -> None:
    """Each as often as it takes; a single text that is too large is told."""
    fake.refuse = lambda request: served.ResultTooLarge("over 64 MiB") if len(request.texts) > 100 else None
    async with connected(kind, fake.address) as client:
        assert np.array_equal(await client.embed(MANY), np.stack([dense_row(each) for each in MANY]))
        fake.refuse = lambda _: served.ResultTooLarge("over 64 MiB")
        with pytest.raises(errors.ResultTooLarge):
            await client.embed(["a", "b"])


@pytest.mark.parametrize("where", ["client", "call"])
async def test_a_deadline_covers_all_parts(fake: FakeFrontend, kind: str, where: str) -> None:
    """No part begins anew with all of it."""
    fake.seconds = 1.0  # each of three parts, so that a deadline of each part would not pass
    options = {"timeout": 1.8} if where == "client" else {}
    async with connected(kind, fake.address, in_flight=1, **options) as client:
        start = time.monotonic()
        with pytest.raises(TimeoutError) as raised:
            await client.embed(MANY, **({"timeout": 1.8} if where == "call" else {}))
        assert time.monotonic() - start > 1.7
        assert isinstance(raised.value, errors.DeadlineExceeded)
        assert len(fake.asked) < 3
        assert (await client.embed("a", timeout=math.inf)).shape == (3,)


async def test_every_call_says_for_whom_it_is(fake: FakeFrontend, kind: str) -> None:
    """Key, fairness key, priority, own metadata, and a new request id each."""
    async with connected(
        kind, fake.address, key="secret", fairness_key="shop", priority="bulk", metadata={"traceparent": "00-1"}
    ) as client:
        await client.embed(MANY)
        assert "secret" not in repr(client.client)
        assert "secret" not in repr(client.client.settings)
    for each in fake.metadata:
        assert each["authorization"] == "Bearer secret"
        assert (each["selvage-key"], each["selvage-priority"], each["traceparent"]) == ("shop", "bulk", "00-1")
    assert len({each["x-request-id"] for each in fake.metadata}) == 3
    async with connected(kind, fake.address, metadata=[("x-request-id", "mine")]) as client:
        await client.models()
    assert fake.metadata[-1]["x-request-id"] == "mine"


async def test_where_nobody_listens_it_is_unavailable(kind: str) -> None:
    """After all tries, within the time."""
    async with connected(kind, "127.0.0.1:1", retries=1, timeout=20) as client:
        with pytest.raises(ConnectionError) as raised:
            await client.embed("a")
    assert isinstance(raised.value, errors.Unavailable)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"texts": ["a", 5]}, "texts[1]"),
        ({"texts": ["a", [5]]}, "texts[1]"),
        ({"texts": [[5], None]}, "texts[1]"),
        ({"texts": b"abc"}, "texts"),
        ({"texts": ["a", "half \ud83d of a smile"]}, "texts[1]"),
        ({"texts": "\ud83d"}, "texts"),
        ({"texts": [[5], [-1]]}, "texts[1]"),
        ({"texts": [2**31]}, "texts"),
        ({"texts": ["a"], "output": "colbert"}, "output"),
        ({"texts": ["a"], "output": "Dense"}, "output"),
        ({"texts": ["a"], "output": ["SPARSE"]}, "output"),
        ({"texts": ["a"], "timeout": math.nan}, "timeout"),
        ({"texts": ["a"], "data_type": "int4"}, "data_type"),
        ({"texts": ["a"], "prompt": "p", "prompt_name": "n"}, "prompt"),
        ({"texts": ["a"], "sparse_format": "coo"}, "sparse_format"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_it_is_sent(
    fake: FakeFrontend, kind: str, arguments: dict[str, Any], field: str
) -> None:
    """As the service would."""
    async with connected(kind, fake.address) as client:
        with pytest.raises(errors.InvalidInput) as raised:
            await client.embed(**arguments)
    assert raised.value.field == field
    assert not fake.asked


async def test_a_string_is_no_list_of_documents(fake: FakeFrontend, kind: str) -> None:
    """It would pass for its letters."""
    async with connected(kind, fake.address) as client:
        for ask in (client.rerank("q", "documents"), client.score("q", ["d"]), client.max_sim("q", [np.ones((1, 2))])):
            with pytest.raises(errors.InvalidInput):
                await ask
        with pytest.raises(errors.InvalidInput, match="no pairs"):
            await client.score(["a"], ["b", "c"], pairs=True)
        with pytest.raises(errors.InvalidInput, match="weights is 'Dense'"):
            await client.rerank("q", ["d"], method="hybrid", weights={"Dense": 1})
        with pytest.raises(errors.InvalidInput) as raised:
            await client.rerank("\ud83d", ["d"])
    assert raised.value.field == "query"


async def test_arrays_are_looked_at_before_any_is_sent(fake: FakeFrontend, kind: str) -> None:
    """The place counts in all of them, however many requests they take."""
    good = [np.ones((2, 3), dtype=np.float32)] * 2100
    for bad in (np.ones((2, 4), dtype=np.float32), np.ones(3), np.ones((2, 3), dtype=int)):
        async with connected(kind, fake.address) as client:
            with pytest.raises(errors.InvalidInput) as raised:
                await client.max_sim(good[:2], [*good, bad])
        assert raised.value.field == ("documents" if bad.shape == (2, 4) else "documents[2100]")
    assert not fake.asked


async def test_a_matrix_without_scipy_is_refused_before_it_is_asked_for(
    fake: FakeFrontend, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after everything was computed."""
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    async with connected(kind, fake.address) as client:
        with pytest.raises(ImportError):
            await client.embed(MANY, output="sparse", sparse_format="csr")
        assert not fake.asked
        assert await client.embed("quiet", output="sparse") == sparse_row("quiet")


async def test_one_long_pair_makes_one_request_more(fake: FakeFrontend, kind: str) -> None:
    """Each text counts with its own pair."""
    async with connected(kind, fake.address) as client:
        classes = await client.classify(MANY[:300], ["b"] * 299 + ["c" * 300_000])
    assert classes.scores.shape[0] == 300
    assert len(fake.asked) == 2


async def test_a_client_of_no_sense_is_refused(kind: str) -> None:
    """When it is made."""
    for options in ({"timeout": -1}, {"timeout": math.nan}, {"retries": -1}, {"in_flight": 0}):
        with pytest.raises(ValueError, match="must be at least"):
            KINDS[kind]("127.0.0.1:1", **options)
    for options in ({"key": "secret\n"}, {"fairness_key": "Zoë"}, {"metadata": {"X-Own": "1"}}):
        with pytest.raises(ValueError, match="metadata") as raised:
            KINDS[kind]("127.0.0.1:1", **options)
        assert "secret" not in str(raised.value)


async def test_a_key_in_plain_text_is_warned_of(kind: str) -> None:
    """Where it may leave the own network."""
    with pytest.warns(UserWarning, match="plain text") as caught:
        KINDS[kind]("api.example.com:443", key="secret")
    assert caught[0].filename == __file__
    KINDS[kind]("api.example.com:443", key="secret", tls=True)
    KINDS[kind]("10.1.2.3:50051", key="secret")


@pytest.mark.parametrize(
    ("target", "public"),
    [
        ("127.0.0.1:50051", False),
        ("localhost:50051", False),
        ("[::1]:50051", False),
        ("ipv6:%5B::1%5D:50051", False),
        ("unix:/tmp/a.b", False),
        ("frontend:50051", False),
        ("dns:///frontend.default.svc.cluster.local:50051", False),
        ("ipv4:10.0.0.1:1,192.168.1.1:1", False),
        ("ipv4:10.0.0.1:1,8.8.8.8:1", True),
        ("8.8.8.8:443", True),
        ("[2606:4700::1]:443", True),
        ("dns:///api.example.com:443", True),
        ("dns://1.1.1.1/api.example.com", True),
    ],
)
def test_public_addresses_are_told_from_others(kind: str, target: str, public: bool) -> None:
    """By their form: no name is looked up."""
    assert is_public(target) == public


def test_methods_show_what_they_take(kind: str) -> None:
    """With their options and a docstring, on either client."""
    for name in ("embed", "rerank", "score", "max_sim", "classify", "tokenize", "embed_stream"):
        method = getattr(KINDS[kind], name)
        assert method.__doc__
        parameters = inspect.signature(method).parameters
        assert next(iter(parameters)) == "self"
        assert "model" in parameters
    assert {name for name in vars(Client) if not name.startswith("_")} == {
        name for name in vars(AsyncClient) if not name.startswith("_")
    }


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
