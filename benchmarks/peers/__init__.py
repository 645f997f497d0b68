"""Products to compare with, in processes and mostly Pythons of their own; NAME.txt lists what pip installs there."""
