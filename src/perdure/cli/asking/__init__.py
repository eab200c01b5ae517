"""Asking a person about calls that wait for a decision, on the terminal that runs them (AQ-07).

May touch: the terminal, an open harness, approvals as every surface shows them.
May not touch: policies, grants, or what a decision does: the engine's.
"""
