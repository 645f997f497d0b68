"""MaxSim: the sum over query rows of the best product with a document row (ColBERT, arXiv:2004.12832)."""
