"""Benchmarks: what perdure costs, as ratios to a floor measured in the same run.

`python -m bench` prints one table. Every figure comes from new processes; a row's floor is measured
in the same rounds, in turn with it, so that a machine whose speed drifts moves both. Medians are
printed; a single absolute time on a shared machine means little, a ratio means much.
"""
