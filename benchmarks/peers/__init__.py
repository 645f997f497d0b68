"""Peers that live apart: what pip installs for each (NAME.txt), and how those that are servers are run."""
