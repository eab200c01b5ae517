"""What a task means: the code that runs, recovers and aborts each kind, and the exchange policy.

May touch: `perdure.drive`, `perdure.line`, `perdure.ports`, `perdure.records`, `perdure.errors`.
May not touch: another kind's state (only `post_tools` reads its siblings), every adapter.
"""
