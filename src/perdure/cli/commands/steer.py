"""`perdure steer`: say something to the running exchange of a session (CM-26)."""

from perdure.cli.forwarding.sending import queueing

command = queueing("steer", "at the next boundary of the running exchange")
