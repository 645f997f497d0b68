"""Others to compare with, each in a process and mostly a Python of its own; NAME.txt lists what pip installs there."""
