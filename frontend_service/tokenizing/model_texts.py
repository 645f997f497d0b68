"""Everything that reads the texts of one model: its tokenizer and, of inference-free SPLADE, what reads queries."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from frontend_service.tokenizing.tokenizer import ModelTokenizer
from shared.card import ModelCard, QueryRoute
from shared.query_table import QUERY_TABLE_FILE, QUERY_TOKENIZER_FILE, TOKENIZER_FILE, WEIGHT_BYTES, QueryTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTexts:
    """`tokenizer` is that of all texts, or of documents where there is a `query` tokenizer. `query_table`: the weights
    that queries are looked up in; None where a worker computes them."""

    tokenizer: ModelTokenizer
    query: ModelTokenizer | None = None
    query_table: QueryTable | None = None

    def with_card(self, card: ModelCard) -> "ModelTexts":
        """What reads the texts of an adapter over the model, by its card; all that was read is shared."""
        return replace(self, tokenizer=self.tokenizer.with_card(card))


def read_files(files: Mapping[str, bytes], card: ModelCard) -> ModelTexts:
    """Opens a worker's files, by their names. Raises ValueError where one is broken or missing."""
    content, route = files.get(TOKENIZER_FILE, b""), card.query_route
    tokenizer = ModelTokenizer(content, card)
    if route is None:
        return ModelTexts(tokenizer=tokenizer)
    query = ModelTokenizer(files.get(QUERY_TOKENIZER_FILE, content), card.of_queries(route))
    table = _query_table(files.get(QUERY_TABLE_FILE, b""), route) if route.table_digest else None
    return ModelTexts(tokenizer=tokenizer, query=query, query_table=table)


def _query_table(content: bytes, route: QueryRoute) -> QueryTable:
    """The table of a card. Raises ValueError for another one, and for one that no sparse vector could be made of."""
    if len(content) != WEIGHT_BYTES * route.vocabulary_size:
        raise ValueError(f"the query table has {len(content)} bytes for {route.vocabulary_size} token ids")
    if hashlib.sha256(content).hexdigest() != route.table_digest:
        raise ValueError("the query table is not the one that the card names")
    return QueryTable(np.frombuffer(content, dtype="<f4").astype(np.float32))
