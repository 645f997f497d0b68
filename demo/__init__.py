"""`make demo`: the pair on real weights, from start to stop."""
