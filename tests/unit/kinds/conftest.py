"""The engine fixtures, for every test here."""

from tests.engine import engine as engine
from tests.engine import memory_engine as memory_engine
from tests.engine import unopened_engine as unopened_engine
