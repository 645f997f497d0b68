"""Why the command ends before its work is done."""


class Failed(Exception):
    """The message is all that a person is shown: it names the flag, the file and line, or the target at fault."""
