"""The client of a server: sessions and conversations elsewhere, with the face they have here.

May touch: records, errors, ports, what a harness answers; in `transport` also sockets and h11.

May not touch: an open session, a store, the command line, the server's room.

Importing perdure loads all of this but `transport`, which the composition root loads when somebody
connects.
"""
