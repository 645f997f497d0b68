"""What both clients refuse before they send anything."""

import math
import sys
from typing import Any

import numpy as np
import pytest

from selvage import errors
from support.fake_frontend import KINDS, FakeFrontend, connected, sparse_row, texts

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(1300)


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
