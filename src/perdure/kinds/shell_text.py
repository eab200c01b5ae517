"""What a shell command may hide, so that a glob over its text means what it says (AQ-03).

Only the shell itself knows all of its grammar. This reads quotes, escapes and comments, and
whatever it does not understand counts as more than one command.
"""

from typing import Final

_ELSEWHERE: Final = frozenset(";&|`><\n\r")
"""Characters that begin another command, or a file, outside single quotes."""

_EXPANSIONS: Final = ("$(", "$'")
"""What runs a command, or quotes in a way of its own."""


def runs_one_command(text: str) -> bool:
    """Say whether a text is one plain command: nothing in it starts, joins or redirects another.

    Inside single quotes everything is plain. A comment hides nothing that runs: a line's end after
    it is outside quotes again.
    """
    at, in_double = 0, False
    while at < len(text):
        char = text[at]
        if char in _ELSEWHERE or text.startswith(_EXPANSIONS, at):
            return False
        if char == "\\":
            if text[at + 1 : at + 2] in ("\n", "\r"):
                return False
            at += 2
            continue
        if char == '"':
            in_double = not in_double
        elif char == "'" and not in_double:
            closing = text.find("'", at + 1)
            if closing < 0:
                return False
            at = closing
        elif char == "#" and not in_double and (at == 0 or text[at - 1].isspace()):
            return not any(end in text[at:] for end in ("\n", "\r"))
        at += 1
    return not in_double
