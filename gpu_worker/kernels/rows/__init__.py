"""What is done to rows whatever they mean: summed by segments, cut, normalised, packed; each by two twins."""
