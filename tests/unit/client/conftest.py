"""Engines for both sides of a comparison."""

from tests.engine import engine, memory_engine, unopened_engine

__all__ = ["engine", "memory_engine", "unopened_engine"]
