"""The public kit that perdure is tested with, and that its users test with.

May touch: everything but `perdure.cli`; processes, files and clocks, which are its trade.
May not touch: nothing shipped imports it; a suite needs no test runner, only plain async functions.

One conformance suite per port, the scripted model, the strict wire, the crash rig, and a seeded
event loop with virtual time.
"""
