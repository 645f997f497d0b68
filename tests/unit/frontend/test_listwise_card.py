"""Cards of listwise rerankers that a frontend takes."""

from typing import Any

import pytest
from listwise_fakes import D, Q, listwise_card

from frontend_service.workers.claims import check_card
from frontend_service.workers.reply_check import WrongReply
from shared.card import LateInteraction
from shared.vectors import OutputKind, ScoringMethod, Task


@pytest.mark.parametrize(
    "changes",
    [
        {"query_length": 0},
        {"block_documents": 0},
        {"dimensions": 0},
        {"dimensions": 0, "document_length": -1},
        {"document_marker_id": 402},
        {"document_marker_id": 401},
        {"query_marker": D},
        {"query_marker": ""},
        {"query_marker": "a b"},
        {"opening": "rank {count}"},
        {"document": "{document}{document}{number}"},
        {"closing": "{query}{other}"},
        {"instruction": ""},
        {"listwise": None},
        {"methods": (), "default_method": None},
        {"pools_spans": False},
        {"outputs": (OutputKind.SPARSE,), "tasks": (Task.RERANK, Task.EMBED)},
        {"methods": (ScoringMethod.LISTWISE, ScoringMethod.DENSE)},
        {"late_interaction": LateInteraction(query_length=8, document_length=20)},
        {"document": "<p {number}>{document}</p>"},
        {"document": "<p {number}>" + D + "{document}</p>"},
        {"document": "<p {number}>{document}" + D + D},
        {"document": "<p {number}>{document}" + D + Q},
        {"closing": "{query}"},
        {"closing": Q + "{query}"},
        {"closing": "{query}" + Q + D},
        {"opening": "{count}{query}" + D},
        {"instruction": Q + "{instruction}"},
        {"opening": "{count}{query}" + "a" * 2**20},
    ],
)
def test_a_card_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    """Before any text is read by it."""
    assert check_card(listwise_card())
    with pytest.raises(WrongReply, match="its card makes no sense"):
        check_card(listwise_card(**changes))
