"""Explanations of late-interaction scores: for each query token the document token that matched it best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shared.jobs import JobResult, RaggedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedToken:
    """A query token and its best match as the vocabulary writes them. `position`: that of the match in its document."""

    query_token: str
    document_token: str
    position: int
    similarity: float


def explain(
    result: JobResult, tokens: RaggedTokens, documents: Sequence[int], token_text: Callable[[int], str]
) -> list[list[MatchedToken]]:
    """Explains these documents, by number: a list for each, empty for one without a token that counts.

    `tokens`: those of the single query, then those of all documents. `token_text`: a token id as the vocabulary writes
    it.
    """
    query = tokens.lengths[0]
    ids, offsets = np.frombuffer(tokens.ids, dtype="<i4"), tokens.offsets
    winners = np.frombuffer(result.winners, dtype="<i4").reshape(-1, query)
    similarities = np.frombuffer(result.similarities, dtype="<f4").reshape(-1, query)
    query_tokens = [token_text(int(token_id)) for token_id in ids[:query]]
    return [
        [
            MatchedToken(
                query_token=query_tokens[place],
                document_token=token_text(int(ids[offsets[1 + document] + winners[document, place]])),
                position=int(winners[document, place]),
                similarity=float(similarities[document, place]),
            )
            for place in np.flatnonzero(winners[document] >= 0).tolist()
        ]
        for document in documents
    ]
