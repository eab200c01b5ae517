"""The scheduler: what a kind must offer, which task runs now, and who owns what runs.

May touch: `perdure.line`, `perdure.ports`, `perdure.records`, `perdure.errors`; task metadata.
May not touch: payloads, models, the transcript, any one kind.
"""
