"""The crash rig: kill a real session anywhere, open it again, and audit what became of it.

A trial is a sequence of lives of one session in one SQLite file. Each life is a child process
that opens the session, says its inputs under their request ids, drives, and is killed by SIGKILL
at a named point or at a moment; the last life is not killed and audits. Faults enter only through
the ports (`points`); the witnesses are files outside the store, written line by line (`story`); the
laws are read from the journal (`audit`). Children are forked from a warm process that imported
everything and has one thread (`zygote`), so that a thousand kills take minutes (`rig`).

    python -m perdure.testing.crash_rig --kills 1000 --seed 1
"""

from perdure.testing.crash_rig.audit import Journal as Journal
from perdure.testing.crash_rig.rig import CrashRig as CrashRig
from perdure.testing.crash_rig.trial import Kill as Kill
from perdure.testing.crash_rig.trial import Report as Report
from perdure.testing.crash_rig.trial import Trial as Trial
