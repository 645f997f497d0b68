"""What both clients refuse before they send anything, and what they leave to the frontend."""

import math
import sys
from typing import Any

import numpy as np
import pytest

from selvage.calls import methods
from selvage.calls.split_call import RetryPolicy, SplitCall
from selvage.errors import InvalidInput
from support.split_calls import Nobody

ROWS = [np.ones((2, 3), dtype=np.float32)] * 2100
HALF = "half \ud83d of a smile"


@pytest.mark.parametrize(
    ("method", "arguments", "options", "field"),
    [
        (methods.embed, [["a", 5]], {}, "texts[1]"),
        (methods.embed, [["a", [5]]], {}, "texts[1]"),
        (methods.embed, [[[5], None]], {}, "texts[1]"),
        (methods.embed, [b"abc"], {}, "texts"),
        (methods.embed, [["a", HALF]], {}, "texts[1]"),
        (methods.embed, [HALF], {}, "texts"),
        (methods.embed, [[[5], [-1]]], {}, "texts[1]"),
        (methods.embed, [[2**31]], {}, "texts"),
        (methods.embed, ["a"], {"output": "colbert"}, "output"),
        (methods.embed, ["a"], {"output": "Dense"}, "output"),
        (methods.embed, ["a"], {"output": ["unspecified"]}, "output"),
        (methods.embed, ["a"], {"data_type": "int4"}, "data_type"),
        (methods.embed, ["a"], {"prompt": "p", "prompt_name": "n"}, "prompt"),
        (methods.embed, ["a"], {"sparse_format": "coo"}, "sparse_format"),
        (methods.embed_stream, [["a"]], {"batch_size": 0}, "batch_size"),
        (methods.rerank, ["q", "a string is no list"], {}, "documents"),
        (methods.rerank, [HALF, ["d"]], {}, "query"),
        (methods.rerank, ["q", ["d"]], {"method": "hybrid", "weights": {"Dense": 1}}, "weights"),
        (methods.score, ["q", ["d"]], {}, "queries"),
        (methods.score, [["a"], ["b", "c"]], {"pairs": True}, "documents"),
        (methods.max_sim, ["q", ROWS], {}, "queries"),
        (methods.max_sim, [[np.ones((1, 3), dtype=int)], ROWS], {}, "queries[0]"),
        (methods.max_sim, [ROWS[:2], [*ROWS, np.ones(3)]], {}, "documents[2100]"),
        (methods.max_sim, [ROWS[:2], [*ROWS, np.ones((2, 4))]], {}, "documents"),
        (methods.detokenize, ["a"], {}, "tokenized"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_sent(
    method: Any, arguments: list[Any], options: dict[str, Any], field: str
) -> None:
    """As the service would, by its place in the whole input."""
    with pytest.raises(InvalidInput) as raised:
        method(Nobody(), *arguments, **options)
    assert raised.value.field == field


def test_a_timeout_is_a_time() -> None:
    for seconds in (-1, math.nan):
        with pytest.raises(InvalidInput, match="timeout is") as raised:
            SplitCall(methods.embed(Nobody(), ["a"]), seconds=seconds, retries=RetryPolicy(1))
        assert raised.value.field == "timeout"


def test_a_matrix_without_scipy_is_refused_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after everything was computed; dicts need none."""
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError):
        methods.embed(Nobody(), ["a"], output="sparse", sparse_format="csr")
    methods.embed(Nobody(), ["a"], output="sparse")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (methods.embed, [["a"]]),
        (methods.rerank, ["a", ["b"]]),
        (methods.score, [["a"], ["b"]]),
        (methods.max_sim, [["a"], ROWS[:1]]),
        (methods.classify, [["a"]]),
        (methods.classify_tokens, [["a"]]),
        (methods.tokenize, [["a"]]),
    ],
)
def test_a_call_says_whether_to_cut_or_says_nothing(method: Any, arguments: list[Any]) -> None:
    """An explicit False is another thing than silence: it refuses where the frontend has --auto-truncate too."""
    for options in ({}, {"truncate": False}, {"truncate": True}):
        operation = method(Nobody(), *arguments, **options)
        (part,) = operation.parts()
        message = operation.message(part)
        assert message.HasField("truncate") == bool(options)
        assert message.truncate == options.get("truncate", False)
