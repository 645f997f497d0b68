"""The part of range sums and finished rows that runs on the device, in Triton. It knows pointers and tables;
`triton_rows` launches it.

[n] is a block of n numbers, which the threads of one program hold together. Everything else is a single number. Rows
are groups * LANES numbers wide; LANES of them are 16 bytes, so that the compiler may read 16 at once.
"""

import triton
import triton.language as tl

NOTHING, FLOAT32, FLOAT16, BFLOAT16, INT8, BINARY = (tl.constexpr(kind) for kind in range(6))
"""Kinds of finished rows."""


@triton.jit(do_not_specialize=["groups", "growth"])
def sum_segments(rows, ranges, sums, groups, growth, LANES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr):
    """Writes sums [S, W] float32 of S ranges of rows [S, 4]: first row, number of rows, weight of the first, divisor
    (bits of a float32).

    Weights grow by `growth` from row to row. A program sums a range in BLOCK_W columns. The order in which rows are
    added depends only on their place in the range.
    """
    width = groups * LANES
    number = tl.program_id(0)
    row_range = ranges + number * 4
    first = tl.load(row_range).to(tl.int64)  # 64 bits, as it will be multiplied by the width
    count = tl.load(row_range + 1)
    weight = tl.load(row_range + 2)
    divisor = tl.load(row_range + 3).to(tl.float32, bitcast=True)
    place = tl.arange(0, BLOCK_N)
    column = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    inside = column < width
    total = tl.full((BLOCK_N, BLOCK_W), 0.0, tl.float32)
    for start in range(0, count, BLOCK_N):
        row = start + place
        present = (row < count)[:, None] & inside[None, :]
        tile = tl.load(rows + (first + row)[:, None] * width + column[None, :], mask=present, other=0.0)
        total += tile.to(tl.float32) * (weight + row * growth).to(tl.float32)[:, None]
    tl.store(sums + number.to(tl.int64) * width + column, tl.div_rn(tl.sum(total, axis=0), divisor), mask=inside)


@triton.jit(do_not_specialize=["picked", "count", "groups", "parts", "unit", "kind"])
def finish_rows(
    rows,
    index,
    packed,
    scales,
    finite,
    picked,
    count,
    groups,
    parts,
    unit,
    kind,
    EPSILON: tl.constexpr,
    TINY: tl.constexpr,
    LANES: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Finishes the leading parts * PART numbers of `count` rows: those at `index` [count] int64 if `picked`, else the
    first.

    Writes them as `kind` to `packed`, with unit length if `unit`. `finite` [count] uint8 tells which rows consist of
    finite numbers; `scales` [count] float32 are written for INT8. A program finishes BLOCK_N rows, and a row's result
    depends on nothing else. A row is read twice, in blocks of BLOCK_W: for its length, then, from a cache, to write it.
    """
    width = groups * LANES
    dimensions = parts * PART
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    there = row < count
    chosen = tl.load(index + row, mask=there & (picked != 0), other=0)
    column = tl.arange(0, BLOCK_W)
    at = rows + tl.where(picked != 0, chosen, row)[:, None] * width + column[None, :]
    squares = tl.full((BLOCK_N,), 0.0, tl.float32)
    largest = tl.full((BLOCK_N,), 0.0, tl.float32)
    wrong = tl.full((BLOCK_N,), 0, tl.int32)
    for start in range(0, dimensions, BLOCK_W):
        inside = there[:, None] & (start + column < dimensions)[None, :]
        tile = tl.load(at + start, mask=inside, other=0.0).to(tl.float32)
        size = tl.abs(tile)
        squares += tl.sum(tile * tile, axis=1)
        largest = tl.maximum(largest, tl.max(size, axis=1))
        wrong = tl.maximum(wrong, tl.max(tl.where(size < float("inf"), 0, 1), axis=1))
    tl.store(finite + row, (wrong == 0).to(tl.uint8), mask=there)
    length = tl.where(unit != 0, tl.maximum(tl.sqrt_rn(squares), EPSILON), 1.0)
    factor = tl.div_rn(tl.full((BLOCK_N,), 1.0, tl.float32), length)
    scale = tl.div_rn(tl.maximum(largest * factor, TINY), tl.full((BLOCK_N,), 127.0, tl.float32))
    if kind == INT8:
        tl.store(scales + row, scale, mask=there)
    if kind != NOTHING:
        for start in range(0, dimensions, BLOCK_W):
            inside = there[:, None] & (start + column < dimensions)[None, :]
            numbers = tl.load(at + start, mask=inside, other=0.0).to(tl.float32) * factor[:, None]
            if kind == BINARY:
                eighth = start // 8 + tl.arange(0, BLOCK_W // 8)
                size = (dimensions + 7) // 8
                octets = _octets((numbers >= 0) & inside, BLOCK_N, BLOCK_W)
                wanted = there[:, None] & (eighth < size)[None, :]
                tl.store(packed + row[:, None] * size + eighth[None, :], octets, mask=wanted)
            else:
                place = row[:, None] * dimensions + start + column[None, :]
                _write(packed, place, numbers, tl.broadcast_to(scale[:, None], (BLOCK_N, BLOCK_W)), inside, kind)


@triton.jit
def _write(packed, place, numbers, scale, inside, kind):
    """Writes `numbers`, of 1, 2 or 4 bytes each, to their places in a buffer."""
    if kind == FLOAT32:
        tl.store(packed.to(tl.pointer_type(tl.float32), bitcast=True) + place, numbers, mask=inside)
    elif kind == FLOAT16:
        tl.store(packed.to(tl.pointer_type(tl.float16), bitcast=True) + place, numbers.to(tl.float16), mask=inside)
    elif kind == BFLOAT16:
        tl.store(packed.to(tl.pointer_type(tl.bfloat16), bitcast=True) + place, numbers.to(tl.bfloat16), mask=inside)
    else:
        steps = _rounded(tl.div_rn(numbers, scale)).to(tl.int8)
        tl.store(packed + place, steps.to(tl.uint8, bitcast=True), mask=inside)


@triton.jit
def _rounded(steps):
    """Rounds to the nearest whole number within 127, ties to even: beyond 2^23 a float32 has no fraction."""
    whole = (steps + 12582912.0) - 12582912.0
    return tl.minimum(tl.maximum(whole, -127.0), 127.0)


@triton.jit
def _octets(bits, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr):
    """Packs bits [BLOCK_N, BLOCK_W] into [BLOCK_N, BLOCK_W / 8] uint8; the first of eight is the most significant."""
    eight = tl.reshape(bits.to(tl.int32), (BLOCK_N, BLOCK_W // 8, 8))
    return tl.sum(eight << (7 - tl.arange(0, 8))[None, None, :], axis=2).to(tl.uint8)
