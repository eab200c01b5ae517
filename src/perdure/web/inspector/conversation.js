// One conversation as this page holds it: a base, and the commits applied to it, each whole
// (WT-18, WT-19). At a past boundary it is read once and never changes (WB-31).

import { get } from "./http.js";
import { Scratch } from "./scratch.js";
import { EventStream } from "./stream.js";

export const PAGE = 50;
const INPUTS_MAX = 500;

const WAITING = new Set(["waiting", "parked"]);
const INFLIGHT = new Set(["streaming", "polling", "running", "spawning", "summarizing"]);

/** What a status means to a person: about to start, under way, waiting for somebody, ended. */
export function roleOf(task) {
  if (task.ended) return "ended";
  if (WAITING.has(task.status)) return "waiting";
  return INFLIGHT.has(task.status) ? "working" : "planned";
}

export class ConversationView extends EventTarget {
  session;
  conv;
  at;
  name = "";
  asOf = 0;
  state = null; // the conversation's record
  entries = new Map(); // the loaded window, in transcript order
  summaries = new Map(); // every summary seen, also out of the window (WT-11)
  hasOlder = false;
  hasNewer = false;
  tasks = new Map(); // live tasks
  ended = new Map(); // tasks that ended while we looked
  scratch = new Map(); // what a running task shows so far, by task
  inputs = new Map(); // messages of queued inputs, by id
  approvals = new Map(); // those that wait, and those that ended while we looked
  decisions = new Map(); // every approval of the session, by the task of its call
  usage = null;
  budgets = [];
  context = new Set();
  connection = { live: false };
  fault = null;
  #stream = null;
  #refresh = new Map();
  #loading = null;

  constructor(session, conv, at) {
    super();
    Object.assign(this, { session, conv, at });
  }

  get path() {
    return `/sessions/${this.session}`;
  }

  /** Read the facts; then follow the stream, unless a past boundary is shown. */
  async open() {
    const facts = await get(this.path);
    this.name = facts.name;
    this.facts = facts;
    if (this.conv === "root") this.conv = String(facts.root ?? "root");
    if (this.at !== null) await this.#readAt();
    else if (facts.root === null) this.#tell("base");
    else this.#follow();
    await this.#readSpending();
  }

  close() {
    this.#stream?.close();
    for (const timer of this.#refresh.values()) clearTimeout(timer);
  }

  again() {
    this.#stream?.again();
  }

  get isWorking() {
    return [...this.tasks.values()].some((task) => roleOf(task) === "working");
  }

  /** "idle", "working", or "waiting" for a decision. */
  get mood() {
    if (this.fault) return "faulted";
    if (this.waitingApprovals().length) return "waiting";
    return this.tasks.size ? "working" : "idle";
  }

  waitingApprovals() {
    return [...this.approvals.values()].filter(isOpen);
  }

  // ------------------------------------------------------------------ reading

  async #readAt() {
    const at = { as_of: this.at };
    const here = `${this.path}/conversations/${this.conv}`;
    const [state, page, tasks, queue] = await Promise.all([
      get(here, at),
      get(`${here}/entries`, { ...at, newest: true, limit: PAGE }),
      get(`${here}/tasks`, { ...at, live: true, limit: 1_000 }),
      get(`${here}/queue`, at),
    ]);
    this.#base({
      asOf: state.asOf, conversation: state.conversation, entries: page.entries,
      tasks: tasks.tasks, scratch: {}, inbox: queue.queue.map((item) => ({ ...item, kind: item.mode })),
    }, page.next !== null);
  }

  async #readApprovals() {
    const answer = await get(`${this.path}/approvals`, { status: "all", limit: 1_000 });
    this.decisions = new Map(answer.approvals.map((approval) => [approval.toolTask, approval]));
    const waiting = new Map(answer.approvals.filter(isOpen).map((approval) => [approval.id, approval]));
    for (const [id, approval] of this.approvals) if (!waiting.has(id) && isOpen(approval)) this.approvals.delete(id);
    for (const [id, approval] of waiting) if (!this.ended.has(id)) this.approvals.set(id, approval);
    this.#tell("approvals");
  }

  async #readSpending() {
    const answer = await get(`${this.path}/usage`, { as_of: this.at });
    this.usage = answer.usage;
    this.budgets = answer.budgets ?? [];
    this.#tell("usage");
  }

  #soon(name, read, ms = 60) {
    clearTimeout(this.#refresh.get(name));
    const again = () => read().catch(() => this.connection.live && this.#soon(name, read, 2_000));
    this.#refresh.set(name, setTimeout(again, ms));
  }

  /** Load the page before the oldest entry, or after the newest; answers what was added. */
  async more(direction) {
    if (this.#loading) return [];
    const ids = [...this.entries.keys()];
    const query = direction === "older" ? { before: ids[0] } : { after: ids.at(-1) };
    return this.#page(query, direction);
  }

  async #page(query, direction) {
    const load = get(`${this.path}/conversations/${this.conv}/entries`, { ...query, limit: PAGE, as_of: this.at });
    this.#loading = load;
    try {
      const page = await load;
      const known = [...this.entries.values()];
      const fresh = page.entries.filter((entry) => !this.entries.has(entry.id));
      const order = direction === "older" ? [...fresh, ...known] : [...known, ...fresh];
      this.entries = new Map(order.map((entry) => [entry.id, entry]));
      fresh.forEach((entry) => this.#remember(entry));
      if (direction === "older") this.hasOlder = page.next !== null;
      else this.hasNewer = page.next !== null;
      return fresh;
    } finally {
      this.#loading = null;
    }
  }

  /** Show the entries around one of them; or the newest ones, for null. */
  async around(entry) {
    const here = `${this.path}/conversations/${this.conv}/entries`;
    const query = entry === null ? { newest: true } : { before: entry + 1 };
    const page = await get(here, { ...query, limit: PAGE, as_of: this.at });
    this.entries = new Map(page.entries.map((one) => [one.id, one]));
    page.entries.forEach((one) => this.#remember(one));
    this.hasOlder = page.next !== null;
    this.hasNewer = false;
    if (entry !== null && page.entries.length) {
      this.hasNewer = true;
      await this.more("newer");
    }
    this.#tell("window");
  }

  /** Let entries go at one end, so that the page stays small (WB-36). */
  drop(ids, direction) {
    for (const id of ids) this.entries.delete(id);
    if (direction === "older") this.hasOlder = true;
    else this.hasNewer = true;
  }

  #remember(entry) {
    if (entry.kind === "summary" && entry.through !== undefined) this.summaries.set(entry.id, entry);
  }

  // ---------------------------------------------------------------- following

  #follow() {
    const query = `conversation=${this.conv}&owned=true&limit=${PAGE}`;
    this.#stream = new EventStream(`${this.path}/events?${query}`, {
      onevent: (type, data) => this.#event(type, data),
      onstate: (state) => {
        this.connection = state;
        this.#tell("connection");
      },
    });
  }

  #event(type, data) {
    if (type === "base") this.#base(data, data.entries.length >= PAGE);
    else if (type === "commit") this.#commit(data);
    else if (type === "delta") this.#delta(data);
    else if (type === "signal") this.#signal(data);
  }

  #base(base, hasOlder) {
    this.asOf = base.asOf;
    this.state = base.conversation;
    this.entries = new Map(base.entries.map((entry) => [entry.id, entry]));
    base.entries.forEach((entry) => this.#remember(entry));
    this.hasOlder = hasOlder;
    this.hasNewer = false;
    this.tasks = new Map(base.tasks.map((task) => [task.id, task]));
    this.context = new Set(base.conversation.context ?? []);
    this.inputs = new Map((base.inbox ?? []).map((item) => [item.id, item.messages]));
    const reduced = Object.entries(base.scratch ?? {});
    this.scratch = new Map(reduced.map(([task, shown]) => [Number(task), new Scratch(shown)]));
    this.fault = null;
    this.#tell("base");
    if (this.at === null) this.#soon("approvals", () => this.#readApprovals(), 0);
  }

  #commit(commit) {
    if (commit.lastSeq <= this.asOf) return;
    const touched = { entries: [], calls: new Set() };
    for (const { seq, change } of commit.writes) this.#write(seq, change, commit, touched);
    this.asOf = commit.lastSeq;
    this.#tell("commit", touched);
  }

  #write(seq, change, commit, touched) {
    const isHere = String(change.conv ?? change.id) === String(this.conv);
    switch (change.k) {
      case "ins_entry":
        if (isHere) this.#insert({ ...change, id: seq, commitEnd: commit.lastSeq }, touched);
        break;
      case "ins_task":
        this.tasks.set(seq, { ...change, id: seq, since: commit.timestamp });
        if (change.kind === "approval") this.#soon("approvals", () => this.#readApprovals());
        break;
      case "set":
      case "settle":
        this.#patch(change, commit);
        break;
      case "ctx_append":
        if (isHere) for (const id of change.ids) this.context.add(id);
        break;
      case "ctx_replace":
        if (isHere) this.#replace(change);
        break;
      case "ctx_reset":
        if (isHere) this.context = new Set(change.ids);
        touched.context = true;
        break;
      case "set_conv":
        if (isHere) this.state = { ...this.state, ...change };
        break;
      case "list_append":
        if (change.namespace === "perdure.usage" || change.key === "perdure.usage") this.#soon("usage", () => this.#readSpending());
        break;
      default:
    }
  }

  #insert(entry, touched) {
    if (entry.kind === "input") this.#keepInput(entry);
    if (entry.ref !== undefined && entry.payload === undefined && this.inputs.has(entry.ref)) {
      entry.payload = { v: 1, messages: this.inputs.get(entry.ref) };
    }
    this.#remember(entry);
    if (!this.hasNewer) this.entries.set(entry.id, entry);
    touched.entries.push(entry);
  }

  #keepInput(entry) {
    this.inputs.set(entry.id, entry.payload?.messages ?? []);
    if (this.inputs.size > INPUTS_MAX) this.inputs.delete(this.inputs.keys().next().value);
  }

  #patch(change, commit) {
    const task = this.tasks.get(change.id);
    if (!task) return;
    const state = { ...task.state, ...change.state };
    for (const name of change.unset ?? []) delete state[name];
    const patched = { ...task, ...change, kind: task.kind, k: undefined, state, id: change.id, since: commit.timestamp };
    if (change.k === "set") this.tasks.set(change.id, patched);
    else this.#end({ ...patched, ended: commit.timestamp });
    if (task.kind === "approval") this.#approval(patched, change.k === "settle");
  }

  #end(task) {
    this.tasks.delete(task.id);
    this.scratch.delete(task.id);
    this.ended.set(task.id, task);
    if (this.ended.size > INPUTS_MAX) this.ended.delete(this.ended.keys().next().value);
  }

  #approval(task, isSettled) {
    const known = this.approvals.get(task.id);
    if (known && isSettled) {
      const ended = { ...known, status: task.status, decision: task.state.decision, endedMs: Date.now() };
      this.approvals.set(task.id, ended);
      this.decisions.set(known.toolTask, ended);
      this.#soon("usage", () => this.#readSpending());
    } else this.#soon("approvals", () => this.#readApprovals());
  }

  #replace({ through, with: head }) {
    const ids = [...this.context];
    this.context = new Set([head, ...ids.slice(ids.indexOf(through) + 1)]);
  }

  #delta({ taskId, kind, payload }) {
    if (!this.scratch.has(taskId)) this.scratch.set(taskId, new Scratch());
    this.scratch.get(taskId).apply(kind, payload);
    this.#tell("delta", { taskId, kind });
  }

  #signal({ type, signal = type, message }) {
    if (signal === "fault") this.fault = message ?? "the session stopped";
    this.#tell("signal", { signal });
  }

  #tell(what, detail = {}) {
    this.dispatchEvent(new CustomEvent("change", { detail: { what, ...detail } }));
  }
}

/** Say whether an approval still waits for somebody. */
export function isOpen(approval) {
  return approval.status === "waiting" || approval.status === "pending";
}
