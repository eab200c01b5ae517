"""What the scenarios share: the crash rig, and an engine on every backend."""

from tests.crash.conftest import rig as rig
from tests.engine import engine as engine
from tests.engine import unopened_engine as unopened_engine
