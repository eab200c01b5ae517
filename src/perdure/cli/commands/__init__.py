"""The subcommands of `perdure`, one module each, imported when it is named.

May touch: the rooms below, through one call; the terminal of its surface.
May not touch: other subcommands, logic of its own.
"""
