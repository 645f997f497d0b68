"""What `make gpu` measures: published shapes on an accelerator, a part a file. `run` is where it begins."""
