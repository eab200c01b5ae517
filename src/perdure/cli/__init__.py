"""The command line: words on a terminal.

May touch: everything below it, standard input and output, signals, the environment.
May not touch: logic of its own; a command parses, runs one call and prints.

`main` holds the lazy group; a subcommand is a module of its own, imported when it is named (K06).
"""
