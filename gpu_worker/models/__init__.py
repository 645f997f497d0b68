"""From a repository on disk to something that runs packed batches."""
