"""The HTTP surface: the session API, its event stream, and the files of a page.

May touch: opening and the rooms below it, sockets, starlette, uvicorn, h11, the clock of the loop.

May not touch: the command line, other surfaces, a store's files. Nothing imports this room but a
command or program that serves or asks a server; importing perdure does not.

Authentication (`auth`), sessions (`house`) and transport (`serving`) know nothing of each other:
`app.make_app` marries them, so that a private socket can serve the same routes behind its own door.
"""
