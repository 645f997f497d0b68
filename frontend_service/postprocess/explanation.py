"""What explains a late-interaction score: for each query token the document token that matched it best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shared.jobs import JobResult
from shared.ragged import RaggedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedToken:
    """Tokens as the vocabulary writes them; `position` is the document's token, from 0."""

    query_token: str
    document_token: str
    position: int
    similarity: float


def explain(
    result: JobResult, tokens: RaggedTokens, documents: Sequence[int], written: Callable[[int], str]
) -> list[list[MatchedToken]]:
    """One list a document, in the order given; empty for a document without a scoreable token.

    `tokens` are the one query's, then the documents'; `written` gives a token id as the vocabulary writes it.
    """
    query = tokens.lengths[0]
    ids, offsets = np.frombuffer(tokens.ids, dtype="<i4"), tokens.offsets
    winners = np.frombuffer(result.winners, dtype="<i4").reshape(-1, query)
    similarities = np.frombuffer(result.similarities, dtype="<f4").reshape(-1, query)
    asked = [written(int(identity)) for identity in ids[:query]]
    return [
        [
            MatchedToken(
                query_token=asked[place],
                document_token=written(int(ids[offsets[1 + document] + winners[document, place]])),
                position=int(winners[document, place]),
                similarity=float(similarities[document, place]),
            )
            for place in np.flatnonzero(winners[document] >= 0).tolist()
        ]
        for document in documents
    ]
