"""`perdure follow-up`: say something to a session for after its next final answer (CM-26)."""

from perdure.cli.forwarding.sending import queueing

command = queueing("followUp", "after the next final answer")
