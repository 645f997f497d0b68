"""From a recipe and its weights to a model that is known to run packed batches right."""
