"""Drive a session for a person, here or through its owner: what `run` and `resume` share.

May touch: `opening`, an open harness, `cli.forwarding`, `cli.asking`, the terminal.
May not touch: flags and files of one command.
"""
