"""The surface for editors: sessions over the Agent Client Protocol, on standard streams.

May touch: opening and the rooms below it, the package of the protocol, standard input and output.
May not touch: the command line, other surfaces, a store's files.

`agent` answers the protocol's methods, `session` runs the turns of one open session, `narration`
turns what a watch delivers into updates. Nothing but `perdure acp` imports this room.
"""
