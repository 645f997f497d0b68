"""What a worker says of itself, checked before anything relies on it: its card, its limits, its load. No transport."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isfinite

from frontend_service.workers.reply_check import WrongReply
from shared.card import PLACE, Listwise, ModelCard, QueryRoute
from shared.jobs import Priority
from shared.load import Load
from shared.query_table import TABLE_WEIGHTS
from shared.vectors import OutputKind, ScoringMethod, Task

NAME_LETTERS = 512
"""Most letters of a model's name, of an alias and of a fingerprint."""
NAMES, LABELS, PROMPTS, SKIPLIST, SPECIAL_IDS = 64, 100_000, 1024, 100_000, 100_000
"""Most names, labels, prompts, skipped and special token ids of a model."""
CARD_LETTERS = 1024 * 1024
"""Most letters of all texts of a card together."""
LARGEST = 2**31 - 1
TOKENIZER_BYTES = 64 * 1024 * 1024
"""Most bytes of a tokenizer, twice those of the largest that are known (256,000 tokens: 33 MB)."""
ADAPTERS = 1024
"""Most adapters of a worker."""
TOKENIZER_PIECES = 4096
"""Most messages in which a tokenizer comes."""
LISTWISE_PLACES = {
    "opening": ["count", "query"],
    "instruction": ["instruction"],
    "document": ["document", "number"],
    "closing": ["query"],
}
"""The places that each text of a listwise reranker has."""
STALLED_LETTERS = 300
"""Most letters of the reason for which a worker computes nothing; what follows them is left out."""


def check_card(card: ModelCard) -> ModelCard:
    """Returns a card that makes sense. Raises WrongReply for one that does not."""
    _check_texts(card)
    for name, value, least in (
        ("max_tokens", card.max_tokens, 1),
        ("vocabulary_size", card.vocabulary_size, 1),
        ("dimensions", card.dimensions, int(OutputKind.DENSE in card.outputs)),
        ("multi_vector_dimensions", card.multi_vector_dimensions, int(OutputKind.MULTI_VECTOR in card.outputs)),
        ("chunk_tokens", card.chunk_tokens, 0),
        ("cache_tokens", card.cache_tokens, 0),
    ):
        _require(value >= least, f"{name} is {value}")
    # A model's files may name more dimensions than its last layer leaves, and ends of texts that no text gets.
    _require(all(1 <= width <= LARGEST for width in card.allowed_dimensions), "allowed_dimensions")
    _require(all(0 <= token <= LARGEST for token in card.special_tokens.values()), "special_tokens")
    classifies = {Task.CLASSIFY, Task.CLASSIFY_TOKENS} & {*card.tasks} or ScoringMethod.CROSS_ENCODER in card.methods
    _require(bool(card.labels) or not classifies, "it classifies, and has no labels")
    _require(card.default_method in (None, *card.methods), "default_method")
    late = card.late_interaction
    if late is not None:
        _require(min(late.query_length, late.document_length) >= 1, "the lengths of late interaction")
        _require(0 <= late.expansion_length <= LARGEST and late.expansion_id >= 0, "query expansion")
        _require(len(late.skiplist) <= SKIPLIST, f"{len(late.skiplist)} skipped tokens")
    if card.query_route is not None:
        _check_route(card, card.query_route)
    is_listwise = ScoringMethod.LISTWISE in card.methods
    _require((card.listwise is not None) == is_listwise, "the method of a listwise reranker")
    if card.listwise is not None:
        _check_listwise(card, card.listwise)
    return card


def _check_listwise(card: ModelCard, listwise: Listwise) -> None:
    """Raises WrongReply for texts, markers and limits of a listwise reranker that make no sense."""
    _require(card.query_route is None and card.pools_spans, "a listwise reranker's rows")
    # Its rows are no vectors of texts, and as wide as `listwise` says, not as the card's dimensions do.
    _require(not card.outputs and card.late_interaction is None, "a listwise reranker's outputs")
    _require(card.methods == (ScoringMethod.LISTWISE,), "a listwise reranker's methods")
    numbers = (listwise.query_length, listwise.document_length, listwise.block_documents, listwise.dimensions)
    _require(all(1 <= number <= LARGEST for number in numbers), "the limits of a listwise reranker")
    markers = {
        listwise.document_marker: listwise.document_marker_id,
        listwise.query_marker: listwise.query_marker_id,
    }
    _require(len(markers) == len({*markers.values()}) == 2, "equal markers")
    _require(all(marker and not any(map(str.isspace, marker)) for marker in markers), "the markers")
    _require(all(0 <= token < card.vocabulary_size for token in markers.values()), "the markers' ids")
    for name, places in LISTWISE_PLACES.items():
        _require(sorted(PLACE.findall(getattr(listwise, name))) == places, f"{name} of a listwise reranker")
    # Each marker stands once, behind the text that its row is of: else every text of a caller would seem to have one.
    marked = {"document": (listwise.document_marker, "{document}"), "closing": (listwise.query_marker, "{query}")}
    for name in LISTWISE_PLACES:
        text, (wanted, place) = getattr(listwise, name), marked.get(name, ("", ""))
        _require(all(text.count(marker) == (marker == wanted) for marker in markers), f"the markers in {name}")
        _require(text.find(wanted) >= text.find(place), f"the marker in {name}")


def _check_route(card: ModelCard, route: QueryRoute) -> None:
    """Raises WrongReply for a way of queries that makes no sense."""
    _require(route.max_tokens >= 1, f"max_tokens of queries is {route.max_tokens}")
    _require(route.vocabulary_size >= 1, f"vocabulary_size of queries is {route.vocabulary_size}")
    _require(card.outputs == (OutputKind.SPARSE,), "a way of queries, and other outputs than SPARSE")
    if route.table_digest:
        most = min(card.vocabulary_size, TABLE_WEIGHTS)
        _require(route.vocabulary_size <= most, f"a table of {route.vocabulary_size} queries' token ids")


def check_adapters(card: ModelCard, adapters: Sequence[ModelCard]) -> tuple[ModelCard, ...]:
    """Returns the cards of adapters over the model of a card that makes sense. Raises WrongReply where they do not."""
    _require(len(adapters) <= ADAPTERS, f"{len(adapters)} adapters")
    cards = [card, *map(check_card, adapters)]
    _require(
        len({claim.id for claim in cards}) == len({claim.fingerprint for claim in cards}) == len(cards), "its adapters"
    )
    read = {(claim.vocabulary_size, claim.late_interaction) for claim in cards}  # the model's tokenizer serves them all
    _require(len(read) == 1, "its adapters read other tokens")
    return tuple(adapters)


def _check_texts(card: ModelCard) -> None:
    """Raises WrongReply for names that are missing, and for too many texts or too long ones."""
    names = (card.id, card.fingerprint, *card.aliases)
    _require(all(0 < len(name) <= NAME_LETTERS and name.isprintable() for name in names), "its names")
    for what, count, most in (
        ("names", len(names), NAMES),
        ("labels", len(card.labels), LABELS),
        ("prompts", len(card.prompts), PROMPTS),
        ("special tokens", len(card.special_tokens), PROMPTS),
        ("special ids", len(card.special_ids), SPECIAL_IDS),
    ):
        _require(count <= most, f"{count} {what}")
    letters = sum(map(len, _texts(card)))
    _require(letters <= CARD_LETTERS, f"{letters} letters")


def _texts(card: ModelCard) -> Iterable[str]:
    yield from (card.family, card.pooling, card.dtype, card.device, card.attention, card.linear, card.notice)
    yield from (card.max_sim, card.formats, card.whole_texts, card.limited_by, card.default_prompt_name)
    yield from (card.pair_template, card.instructed_pair_template, card.sparse_head, *card.labels)
    if card.query_route is not None:
        yield card.query_route.table_digest
    if card.listwise is not None:
        reading = card.listwise
        yield from (reading.opening, reading.instruction, reading.document, reading.closing)
        yield from (reading.document_marker, reading.query_marker)
    for texts in (card.prompts.items(), ((role, "") for role in card.special_tokens)):
        for pair in texts:
            yield from pair


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise WrongReply("its card makes no sense", what)


def check_limits(queued_tokens: int, queue_seconds: float) -> None:
    """Checks the limits of a worker's queue. Raises WrongReply."""
    if queued_tokens < 0 or not 0 <= queue_seconds < inf:
        raise WrongReply("its limits make no sense", f"{queued_tokens} tokens, {queue_seconds} s")


def check_load(load: Load) -> Load:
    """Returns a load that makes sense, its text cut to a bounded length. Raises WrongReply."""
    counts = (load.queued_tokens, load.queued_jobs, load.turn, load.express_tokens, load.step_tokens)
    numbers = (*counts, load.tokens_per_second, load.busy, load.others, *load.coming)
    if not all(number >= 0 and isfinite(number) for number in numbers):
        raise WrongReply("its load makes no sense", ", ".join(f"{number:g}" for number in numbers))
    if len(load.coming) not in (0, len(Priority)):
        raise WrongReply("its load makes no sense", f"what comes of {len(load.coming)} priorities")
    for backlog in load.backlogs.values():
        least = min(backlog.keys, backlog.jobs, backlog.long_jobs, backlog.long_tokens)
        if least < 0 or backlog.tokens < backlog.long_tokens:
            raise WrongReply("its load makes no sense", f"a backlog of {backlog.tokens} tokens")
    return load if len(load.stalled) <= STALLED_LETTERS else replace(load, stalled=load.stalled[:STALLED_LETTERS])
