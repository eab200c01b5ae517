"""Ready tools, and the ways to make one from a function or a JSON Schema.

May touch: `perdure.ports`, `perdure.records`, `perdure.errors`; `jsonschema` in one module.
May not touch: the engine, the operating system but through ports, approval decisions.

No tool here opens a network connection: there is no fetch (KT-01).
"""

from perdure.toolkits.files import file_tools
from perdure.toolkits.shell import shell_tools

__all__ = ["file_tools", "shell_tools"]
