"""Jobs of no meaning that run before anything is served: the largest of a step, one to time, and one of every kind.

Knows no settings and no logs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from gpu_worker.model.abilities import NOT_OF_SEQUENCES, Abilities
from gpu_worker.model.model import Model
from shared.jobs import Classify, Encode, Job, MaxSim, Score, Work
from shared.ragged import RaggedTokens
from shared.vectors import DataType, InputType, Layout, MultiVectors, OutputKind, QueryExpansion, ScoringMethod, Task

LENGTHS = (1, 8, 64, 256)
"""Lengths of the texts of the warm-up."""
SHORTEST, SPREAD, GOLDEN = 8, 240, 0.618
"""Lengths of the texts in a step: from 8 to 247 tokens, spread evenly by the golden ratio, so that few are equal."""


def warm_up_jobs(model: Model, longest: int | None = None) -> Iterator[Job]:
    """A job for every output, method and task of the model, over texts of a few lengths, of at most `longest` tokens;
    None: as many as the model reads."""
    abilities = Abilities(model)
    works: list[Work] = [_encode((output,)) for output in abilities.rows]
    works += [
        Score(method=method, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
        for method in abilities.methods
        if method not in NOT_OF_SEQUENCES
    ]
    if OutputKind.MULTI_VECTOR in abilities.outputs:
        works += [_max_sim(None, abilities.widths[OutputKind.MULTI_VECTOR])]
        late_method = ScoringMethod.LATE_INTERACTION
        works += [
            replace(work, explain=True) for work in works if isinstance(work, Score) and work.method is late_method
        ]
    works += [Classify()] * (Task.CLASSIFY in abilities.tasks)
    works += [Classify(tokens=True)] * (Task.CLASSIFY_TOKENS in abilities.tasks)
    most = model.max_tokens if longest is None else min(model.max_tokens, longest)
    texts = trial_texts([min(length, most) for length in LENGTHS], model.vocabulary_size)
    jobs = [Job(id=identity, work=work, tokens=texts) for identity, work in enumerate(works)]
    yield from jobs
    late = model.late_interaction
    if late is not None and late.query_expansion is not QueryExpansion.NONE and not late.attend_to_expansion:
        tails = tuple(length // 2 for length in jobs[0].tokens.lengths)
        yield replace(jobs[0], id=len(jobs), unattended_tails=tails)
    queries = MultiVectors(data_type=DataType.FLOAT32, dimensions=8, lengths=(2, 0), data=bytes(64))
    yield Job(id=len(jobs) + 1, work=_max_sim(queries, 8))


def _max_sim(queries: MultiVectors | None, dimensions: int) -> MaxSim:
    """MaxSim with two documents of a caller, one of them without rows. `queries`: None for the texts of the job."""
    data = bytes(3 * 4 * dimensions)
    documents = MultiVectors(data_type=DataType.FLOAT32, dimensions=dimensions, lengths=(3, 0), data=data)
    return MaxSim(queries=queries, documents=documents, layout=Layout.MATRIX, unit_rows=True, mean=False)


def largest_jobs(model: Model, tokens: int) -> Iterator[Job]:
    """Jobs that each fill a step: the largest outputs of the longest texts, and of the shortest.

    The lengths of a Score's documents count, since its query has one token.
    """
    for is_long in (True, False):
        for work in _largest_work(Abilities(model)):
            lengths = _longest_texts(model.longest, tokens) if is_long else [1] * tokens
            if len(lengths) > 1 or not isinstance(work, Score):
                yield Job(id=0, work=work, tokens=trial_texts(lengths, model.vocabulary_size))


def _longest_texts(longest: int, tokens: int) -> list[int]:
    """The lengths of the longest texts of a step. A text of one token comes first, since scores need a query."""
    longest = min(longest, max(tokens - 1, 1))
    whole, rest = divmod(max(tokens - 1, 0), longest)
    return [1, *([longest] * whole), *([rest] if rest else [])]


def _largest_work(abilities: Abilities) -> Iterator[Work]:
    """The work that takes most memory: all outputs as float32, late-interaction scores, and logits of every token."""
    if abilities.rows:
        yield _encode(abilities.rows)
    if OutputKind.MULTI_VECTOR in abilities.outputs:
        late = ScoringMethod.LATE_INTERACTION
        yield Score(method=late, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
    if Task.CLASSIFY in abilities.tasks:
        yield Classify()
    if Task.CLASSIFY_TOKENS in abilities.tasks:
        yield Classify(tokens=True)


def timed_job(model: Model, tokens: int) -> Job:
    """A job of so many tokens in texts of many lengths, for the model's first output or task."""
    lengths, left = list[int](), tokens
    for number in count():
        if not left:
            break
        lengths.append(min(SHORTEST + int(SPREAD * (number * GOLDEN % 1)), model.longest, left))
        left -= lengths[-1]
    return Job(
        id=0,
        work=_usual_work(Abilities(model)),
        tokens=trial_texts(lengths, model.vocabulary_size),
    )


def _encode(outputs: Sequence[OutputKind]) -> Encode:
    """An Encode of documents: a table may have all that queries get."""
    return Encode(outputs=frozenset(outputs), normalize=True, normalize_tokens=True, input_type=InputType.DOCUMENT)


def _usual_work(abilities: Abilities) -> Work:
    if abilities.rows:
        return _encode(abilities.rows[:1])
    return Classify(tokens=Task.CLASSIFY not in abilities.tasks)


def trial_texts(lengths: Sequence[int], vocabulary: int) -> RaggedTokens:
    """Texts of these lengths, of random ids, always the same: no two of some length begin alike, so that none is spared
    what it would take. The ids are of the middle half of the vocabulary, where most have no special tokens."""
    generator, quarter = np.random.default_rng(0), vocabulary // 4
    return RaggedTokens.of([generator.integers(quarter, vocabulary - quarter, length).tolist() for length in lengths])
