"""The scripted model under the name tests look for; `perdure.providers` ships it (K57)."""

from perdure.providers.script import END as END
from perdure.providers.script import UNLIMITED as UNLIMITED
from perdure.providers.script import Deferred as Deferred
from perdure.providers.script import Failure as Failure
from perdure.providers.script import Gate as Gate
from perdure.providers.script import Reply as Reply
from perdure.providers.script import Script as Script
from perdure.providers.script import call as call
from perdure.providers.script import fail as fail
from perdure.providers.script import frames_of as frames_of
from perdure.providers.script import newest_text as newest_text
from perdure.providers.script import say as say
from perdure.providers.script import think as think
from perdure.providers.scripted import ScriptedModels as ScriptedModels
