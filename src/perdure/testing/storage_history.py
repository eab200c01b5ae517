"""Random histories: seeded, legal, and mixing everything storage can be asked to keep."""

import random
from typing import Any, Final

from perdure.records.addresses import Address, ConversationList, ConversationValue
from perdure.records.conversations import InboxItem, ParentLink
from perdure.records.seqs import Seq
from perdure.records.writes import (
    AppendContext,
    DeleteConversation,
    DeleteList,
    PatchConversation,
    PatchTask,
    ReplaceContext,
    ResetContext,
    RetireScope,
    SettleTask,
)
from perdure.testing.storage_lab import Batch, Lab, raw

KINDS: Final = ("user", "assistant", "tool_result")
KEYS: Final = ("", "a", "ab", "b", "é", "\U0001f600")
NAMESPACE: Final = "history"


def value_at(conv_id: Seq, key: str) -> Address:
    """Answer the address of a conversation value that histories write."""
    return ConversationValue[object](NAMESPACE, key).bind(conv_id)


def list_at(conv_id: Seq, key: str) -> Address:
    """Answer the address of a conversation list that histories write."""
    return ConversationList[object](NAMESPACE, key).bind(conv_id)


class History:
    """Write random commits; the same seed writes the same history everywhere."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self._lab = lab
        self._random = random.Random(seed)
        self.boundaries: list[Seq] = [Seq(0)]
        self.conversations: list[Seq] = []
        self._contexts: dict[Seq, list[Seq]] = {}
        self._versions: dict[Seq, int] = {}
        self._inputs: dict[Seq, list[Seq]] = {}
        self._live: list[Seq] = []

    async def run(self, commits: int) -> None:
        """Write that many commits, a working one now and then between them."""
        for number in range(commits):
            if self.conversations and self._random.random() < 0.1:
                await self._working()
            batch = self._lab.main()
            if not self.conversations or self._random.random() < 0.08:
                self._conversation(batch)
            for _ in range(self._random.randint(1, 4)):
                self._write(batch)
            if not batch.writes:
                batch.set(NAMESPACE, number)
            end = await batch.commit(barrier=number % 7 == 0)
            self.boundaries.append(end)

    async def _working(self) -> None:
        batch, scope = self._lab.working(), str(self._random.randint(1, 3))
        for _ in range(self._random.randint(1, 3)):
            key = self._random.choice(KEYS)
            if self._random.random() < 0.5:
                batch.set(NAMESPACE, self._random.random(), key=key, working_scope=scope)
            else:
                batch.append(NAMESPACE, self._random.random(), key=key, working_scope=scope)
        await batch.commit()

    def _conversation(self, batch: Batch) -> None:
        context: list[Seq] = []
        if not self.conversations:
            conv_id = batch.conversation()
        else:
            parent = self._random.choice(self.conversations)
            as_of = self._random.choice([end for end in self.boundaries if end >= parent])
            context = [one for one in self._contexts[parent] if one <= as_of][-5:]
            link = ParentLink(
                conv_id=parent, as_of=as_of, inherit_values=self._random.random() < 0.7
            )
            owner = {} if self._random.random() < 0.5 else {"owner": Seq(1)}
            conv_id = batch.conversation(parent=link, context=tuple(context), **owner)
        self.conversations.append(conv_id)
        self._contexts[conv_id], self._versions[conv_id] = context, 0

    def _write(self, batch: Batch) -> None:
        known = [one for one in self.conversations if one < batch.next_seq]
        conv_id = self._random.choice(known)
        steps = (
            self._entry, self._entry, self._entry, self._task, self._task, self._patch,
            self._value, self._list, self._settings, self._edit, self._session, self._odd_append,
        )  # fmt: skip
        self._random.choice(steps)(batch, conv_id)

    def _entry(self, batch: Batch, conv_id: Seq) -> None:
        kind, key = self._random.choice(KINDS), self._random.choice(KEYS)
        fields: dict[str, Any] = {"key": key} if self._random.random() < 0.3 else {}
        waiting = self._inputs.setdefault(conv_id, [])
        if self._random.random() < 0.2:
            waiting.append(batch.entry(conv_id, "waits", select=False, kind="input"))
        elif waiting and self._random.random() < 0.3:
            seq = batch.entry(conv_id, kind="user", ref=waiting.pop(0))
            self._contexts[conv_id] = [*self._contexts[conv_id], seq]
        else:
            seq = batch.entry(conv_id, f"text {self._random.random()}", kind=kind, **fields)
            self._contexts[conv_id] = [*self._contexts[conv_id], seq]

    def _odd_append(self, batch: Batch, conv_id: Seq) -> None:
        """Append after another edit of the same batch, and in an order of its own."""
        first = batch.entry(conv_id, "late", select=False)
        second = batch.entry(conv_id, "later", select=False)
        self._edit(batch, conv_id)
        ids = (first, second) if self._random.random() < 0.5 else (second,)
        batch.add(AppendContext, conv_id=conv_id, ids=ids)
        self._contexts[conv_id] = [*self._contexts[conv_id], *ids]

    def _task(self, batch: Batch, conv_id: Seq) -> None:
        kind = self._random.choice(("generation", "tool"))
        self._live.append(batch.task(conv_id, kind, state_json=raw({"v": 1, "n": 0, "old": True})))

    def _patch(self, batch: Batch, conv_id: Seq) -> None:
        if not self._live:
            return
        task_id = self._random.choice(self._live)
        unset = ("old",) if self._random.random() < 0.3 else ()
        state = raw({"n": self._random.randint(1, 9)})
        if self._random.random() < 0.4:
            self._live.remove(task_id)
            batch.add(SettleTask, task_id=task_id, status="done", state_json=state, unset=unset)
        else:
            batch.add(
                PatchTask,
                task_id=task_id,
                status=self._random.choice(("running", "waiting")),
                state_json=state,
                unset=unset,
                after=(conv_id,),
            )

    def _value(self, batch: Batch, conv_id: Seq) -> None:
        key = self._random.choice(KEYS)
        if self._random.random() < 0.3:
            batch.delete(NAMESPACE, key=key, conv_id=conv_id)
        else:
            value = self._random.choice((None, self._random.random()))
            batch.set(NAMESPACE, value, key=key, conv_id=conv_id)

    def _list(self, batch: Batch, conv_id: Seq) -> None:
        tag = {"tag": "mark"} if self._random.random() < 0.3 else {}
        key = self._random.choice(KEYS[:2])
        batch.append(NAMESPACE, self._random.random(), key=key, conv_id=conv_id, **tag)

    def _settings(self, batch: Batch, conv_id: Seq) -> None:
        item = InboxItem(id=Seq(1), kind="steer", entry=Seq(1))
        fields: list[dict[str, object]] = [
            {"inbox": (item,) * self._random.randint(0, 2)},
            {"label": self._random.choice((None, "name", "é"))},
            {"steering_mode": self._random.choice(("all", "one-at-a-time"))},
            {"follow_up_mode": "one-at-a-time", "label": "both"},
        ]
        if self._random.random() < 0.05:
            batch.add(DeleteConversation, conv_id=conv_id)
        batch.add(PatchConversation, conv_id=conv_id, **self._random.choice(fields))

    def _edit(self, batch: Batch, conv_id: Seq) -> None:
        context, version = self._contexts[conv_id], self._versions[conv_id]
        if context and self._random.random() < 0.6:
            through = self._random.choice(context)
            head = batch.entry(conv_id, "summary", select=False, kind="summary", through=through)
            batch.add(
                ReplaceContext,
                conv_id=conv_id,
                through=through,
                head=head,
                expect_prefix_version=version,
            )
            self._contexts[conv_id] = [head, *context[context.index(through) + 1 :]]
        else:
            batch.add(ResetContext, conv_id=conv_id, ids=tuple(context[-1:]))
            self._contexts[conv_id] = context[-1:]
        self._versions[conv_id] = version + 1

    def _session(self, batch: Batch, conv_id: Seq) -> None:
        key, roll = self._random.choice(KEYS), self._random.random()
        if roll < 0.5:
            batch.set(NAMESPACE, conv_id, key=key)
        elif roll < 0.6:
            batch.delete(NAMESPACE, key=key)
        elif roll < 0.9:
            batch.append(NAMESPACE, conv_id, key=key)
        elif roll < 0.95:
            batch.add(DeleteList, namespace=NAMESPACE, key=key)
        else:
            batch.add(RetireScope, working_scope=str(self._random.randint(1, 3)))
