"""The error that ends the command before its work is done."""


class Failed(Exception):
    """Its message is all that the user sees: it names the flag, the file and line, or the target at fault."""
