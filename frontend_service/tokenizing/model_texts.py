"""Everything that reads the texts of one model: its tokenizer and, behind a Router, what queries are read with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from frontend_service.tokenizing.query_table import QueryTable
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from shared.card import ModelCard
from shared.tokenizer_files import QUERY_TABLE_FILE, QUERY_TOKENIZER_FILE, TOKENIZER_FILE
from shared.vectors import InputType


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
    query = ModelTokenizer(files.get(QUERY_TOKENIZER_FILE, content), card.side(InputType.QUERY))
    table = QueryTable(files.get(QUERY_TABLE_FILE, b""), card) if route.table_digest else None
    return ModelTexts(tokenizer=tokenizer, query=query, query_table=table)
