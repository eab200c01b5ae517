"""perdure: a durable runtime for AI agents.

Everything a program needs is here; wings and kits have doors of their own (`perdure.toolkits`,
`perdure.records`, `perdure.ports`, `perdure.testing`). Importing this opens no file, starts no
thread and loads no provider.
"""

from perdure.drive.limits import Limits as Limits
from perdure.drive.outcomes import DriveOutcome as DriveOutcome
from perdure.drive.outcomes import DriveResult as DriveResult
from perdure.drive.outcomes import Inspection as Inspection
from perdure.drive.outcomes import Wait as Wait
from perdure.errors import Closed as Closed
from perdure.errors import Faulted as Faulted
from perdure.errors import PerdureError as PerdureError
from perdure.errors import Refused as Refused
from perdure.errors import Rejected as Rejected
from perdure.errors import StorageBusy as StorageBusy
from perdure.errors import Unreachable as Unreachable
from perdure.harness.conversation import Conversation as Conversation
from perdure.harness.harness import Harness as Harness
from perdure.harness.options import HarnessOptions as HarnessOptions
from perdure.hosts.scripts import run as run
from perdure.kinds.hooks import Allow as Allow
from perdure.kinds.hooks import Block as Block
from perdure.kinds.hooks import Continue as Continue
from perdure.kinds.hooks import Decline as Decline
from perdure.kinds.hooks import Hold as Hold
from perdure.kinds.hooks import Hooks as Hooks
from perdure.kinds.hooks import Pass as Pass
from perdure.kinds.hooks import ToolResultPatch as ToolResultPatch
from perdure.kinds.permissions import Permissions as Permissions
from perdure.kinds.policy import ApprovalPolicy as ApprovalPolicy
from perdure.kinds.policy import ApprovalRule as ApprovalRule
from perdure.opening import connect as connect
from perdure.opening import load_config as load_config
from perdure.opening import open as open
from perdure.ports import Tool as Tool
from perdure.ports import ToolContext as ToolContext
from perdure.records.addresses import ConversationList as ConversationList
from perdure.records.addresses import ConversationValue as ConversationValue
from perdure.records.addresses import SessionList as SessionList
from perdure.records.addresses import SessionValue as SessionValue
from perdure.records.addresses import WorkingScope as WorkingScope
from perdure.records.approvals import ApprovalOutcome as ApprovalOutcome
from perdure.records.approvals import Remember as Remember
from perdure.records.budgets import Budget as Budget
from perdure.records.entries import Entry as Entry
from perdure.records.inputs import Accepted as Accepted
from perdure.records.inputs import InputResult as InputResult
from perdure.records.seqs import Seq as Seq
from perdure.records.settings import GenerationSettings as GenerationSettings
from perdure.records.settings import RetryPolicy as RetryPolicy
from perdure.records.tasks import Task as Task
from perdure.toolkits.define import tool as tool
