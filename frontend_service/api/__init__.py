"""The APIs of the frontend, a folder each: they read requests, write replies and translate errors."""
