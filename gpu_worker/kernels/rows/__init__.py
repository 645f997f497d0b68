"""Operations on rows, whatever the rows mean: sums by segment, cutting, normalising, packing; each has two kernels."""
