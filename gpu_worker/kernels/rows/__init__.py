"""Operations on rows, whatever they mean: sums of row ranges, cutting, normalising, packing; each has two kernels."""
