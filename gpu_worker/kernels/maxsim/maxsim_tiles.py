"""The part of MaxSim that runs on the device, in Triton. It knows pointers and tables; `triton_maxsim` launches it.

[n] is a block of n numbers, which the threads of one program hold together. Everything else is a single number.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "groups"])
def score_pairs(
    queries,
    documents,
    row_mask,
    items,
    scratch,
    scores,
    count,
    groups,
    LANES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RESIDENT: tl.constexpr,
    MASKED: tl.constexpr,
    EMPTY: tl.constexpr,
    LOWEST: tl.constexpr,
):
    """Programs share the work items [count, 8]; see `PairTable` of `triton_maxsim` for their fields.

    Rows are groups * LANES numbers wide. LANES of them are 16 bytes, so that the compiler may read 16 at once.
    """
    width = groups * LANES
    for number in range(tl.program_id(0), count, tl.num_programs(0)):
        item = items + number * 8
        first = tl.load(item).to(tl.int64)  # 64 bits, as it will be multiplied by the width
        rows = tl.load(item + 1)
        query = tl.load(item + 2).to(tl.int64)
        query_rows = tl.load(item + 3)
        score = scores + tl.load(item + 4)
        chunks = tl.load(item + 5)
        shared = scratch + tl.load(item + 6)
        counted = tl.load(item + 7)
        total = 0.0
        for start in range(0, query_rows, BLOCK_Q):
            best = _best(
                queries + (query + start) * width,
                documents + first * width,
                row_mask + first,
                query_rows - start,
                rows,
                width,
                BLOCK_M,
                BLOCK_Q,
                BLOCK_K,
                RESIDENT,
                MASKED,
            )
            place = start + tl.arange(0, BLOCK_Q)
            if chunks == 1:
                total += tl.sum(tl.where(place < query_rows, best, 0.0))
            else:
                _join(shared + 1 + place, best, place < query_rows)
        if chunks == 1:
            _finish(score, total, counted, EMPTY)
        elif _arrive(shared, LOWEST) == chunks:
            _finish(score, _sum_up(shared + 1, query_rows, BLOCK_Q, LOWEST), counted, EMPTY)


@triton.jit
def _best(
    queries,
    documents,
    row_mask,
    query_rows,
    rows,
    width,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RESIDENT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The largest product [BLOCK_Q] of each query row with any of `rows` document rows that count, else -inf.

    Absent query rows are zeros, and sums leave out their results.
    """
    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_K)
    query_row = tl.arange(0, BLOCK_Q)
    present = query_row[None, :] < query_rows
    query_at = queries + query_row[None, :] * width + column[:, None]
    if RESIDENT:
        query = tl.load(query_at, mask=present & (column[:, None] < width), other=0.0)
    best = tl.full((BLOCK_M, BLOCK_Q), float("-inf"), tl.float32)
    # Runs to the document's own end. The mask cuts only the last tile, which is not taken out of the loop: its
    # reads would then wait outside of the pipeline.
    for start in range(0, rows, BLOCK_M):
        present_rows = start + row < rows
        counts = present_rows
        if MASKED:  # read before the product, which hides the wait
            counts = present_rows & (tl.load(row_mask + start + row, mask=present_rows, other=0) != 0)
        document_at = documents + (start + row)[:, None] * width + column[None, :]
        if RESIDENT:
            tile = tl.load(document_at, mask=present_rows[:, None] & (column[None, :] < width), other=0.0)
            products = tl.dot(tile, query, input_precision="ieee")
        else:
            products = tl.full((BLOCK_M, BLOCK_Q), 0.0, tl.float32)
            for k in range(0, width, BLOCK_K):
                inside = k + column < width
                tile = tl.load(document_at + k, mask=present_rows[:, None] & inside[None, :], other=0.0)
                query = tl.load(query_at + k, mask=present & inside[:, None], other=0.0)
                products = tl.dot(tile, query, products, input_precision="ieee")
        best = tl.maximum(best, tl.where(counts[:, None], products, float("-inf")))
    return tl.max(best, axis=0)


@triton.jit
def _join(maxima, best, present):
    """Raises `maxima` [BLOCK_Q] in the scratch to `best`.

    The largest of several integers is the same in any order, so chunks may arrive in any order. Relaxed is enough:
    `_arrive` orders these before everything that follows it.
    """
    tl.atomic_max(maxima, mirrored(best.to(tl.int32, bitcast=True)), mask=present, sem="relaxed")


@triton.jit
def _arrive(counter, LOWEST: tl.constexpr):
    """Counts this chunk, and returns how many chunks of the pair have been joined.

    The barrier puts the maxima of all threads of this program before the one thread that counts; its release makes
    them visible with the count, and the acquire of a later arrival (through the chain of additions) makes them
    visible there. So the program that arrives last sees all maxima, and no program ever waits for another.
    """
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel") - LOWEST + 1


@triton.jit
def _sum_up(maxima, query_rows, BLOCK_Q: tl.constexpr, LOWEST: tl.constexpr):
    """Sums the joined maxima of a split pair, block by block as `score_pairs` sums those of other pairs."""
    total = 0.0
    for start in range(0, query_rows, BLOCK_Q):
        place = start + tl.arange(0, BLOCK_Q)
        # Past the first-level cache, where a neighbour's scratch may have left an older copy of the line.
        bits = tl.load(maxima + place, mask=place < query_rows, other=LOWEST, cache_modifier=".cg")
        best = mirrored(bits).to(tl.float32, bitcast=True)
        total += tl.sum(tl.where(place < query_rows, best, 0.0))
    return total


@triton.jit
def _finish(score, total, counted, EMPTY: tl.constexpr):
    """Writes a score; a document in which no row counts has a fixed score, whatever the query."""
    tl.store(score, tl.where(counted != 0, total, EMPTY))


@triton.jit
def mirrored(bits):
    """Maps bits of floats to int32 in the same order, with minus zero below zero; applied twice it gives the bits.

    Positive floats are ordered as integers; for negative ones the order of all bits but the sign is reversed.
    """
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
