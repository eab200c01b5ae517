// The further views of a conversation, each as a table: tasks, context, values, usage (WB-28).

import { h, fill, put } from "./dom.js";
import { get, reason } from "./http.js";
import { written } from "./json.js";
import { roleOf } from "./conversation.js";
import { speaker, wordsOf } from "./entries.js";
import { drawGraph } from "./graph.js";
import { go, write } from "./route.js";
import { taskName } from "./side.js";
import { code, folded, visible } from "./text.js";
import { count, many, money, SIGNS } from "./words.js";

const ROWS = 200;
const AGAIN_MS = 300;

/** A view that reads its rows from one route, and again after commits. */
class Table {
  element;
  #read;
  #outcome = h("p.outcome", { role: "alert" });
  #content = h("div.content");
  #timer = 0;
  #isOpen = true;

  constructor(title, twin, read) {
    this.#read = read;
    this.element = h("section.page.wide", { "aria-label": title },
      h("header.viewhead", null, h("h2", null, title), h("a.twin", { href: `/v1${twin}`, target: "_blank", rel: "noopener" }, "As JSON")),
      this.#outcome, this.#content);
    this.#draw();
  }

  async #draw() {
    try {
      const drawn = await this.#read();
      put(this.#outcome, "");
      if (this.#isOpen && !this.#content.contains(document.activeElement?.closest?.("input"))) fill(this.#content, drawn);
    } catch (error) {
      put(this.#outcome, reason(error));
    }
  }

  apply({ what }) {
    if (what === "delta" || what === "connection") return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#draw(), AGAIN_MS);
  }

  close() {
    this.#isOpen = false;
    clearTimeout(this.#timer);
  }
}

function table(heads, rows, empty) {
  if (!rows.length) return h("p.note", null, empty);
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table" }, h("table", null,
    h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", null, rows)));
}

function entryLink(view, id) {
  return h("a", { href: write({ page: "session", session: view.session, conv: view.conv, view: "conversation", at: view.at, query: { entry: id } }) }, `#${id}`);
}

const ROLE_WORDS = { working: [SIGNS.working, "busy"], waiting: [SIGNS.waiting, "wait"], planned: [SIGNS.idle, "off"], ended: [SIGNS.good, "good"] };

/** Tasks with what they wait for, what they came from and what they made: the graph as a table. */
export function tasksView(view) {
  const path = `${view.path}/conversations/${view.conv}/tasks`;
  return new Table("Tasks", path, async () => {
    const [live, ended] = await Promise.all([
      get(path, { live: true, limit: ROWS, as_of: view.at }),
      get(path, { live: false, limit: ROWS, newest: true, as_of: view.at }),
    ]);
    const past = ended.tasks.map((task) => ({ ...task, ended: true }));
    const tasks = [...live.tasks, ...past].sort((a, b) => b.id - a.id);
    const rows = tasks.map((task) => {
      const [sign, mood] = ROLE_WORDS[roleOf(task)];
      return h("tr", { "data-task": task.id },
        h("th", { scope: "row" }, `#${task.id}`), h("td", null, taskName(task)),
        h("td", null, h("span.state", { "data-mood": mood }, h("span.sign", { "aria-hidden": "true" }, sign), ` ${task.status.replaceAll("_", " ")}${task.abort ? ", being cancelled" : ""}`)),
        h("td", null, task.state?.attempt ?? "–"),
        h("td", null, (task.after ?? []).map((id) => `#${id}`).join(", ") || "–"),
        h("td", null, task.waitsFor ?? "–"),
        h("td", null, task.for ? `#${task.for}` : "–"),
        h("td", null, task.state?.produced ? entryLink(view, task.state.produced) : "–"));
    });
    return [tasks.length ? drawGraph(tasks) : null, table(["Task", "What", "State", "Attempt", "After", "Waits for", "Started by", "Made"], rows, "No task yet.")];
  });
}

/** What the next request shows the model, in its order. */
export function contextView(view) {
  const path = `${view.path}/conversations/${view.conv}/context`;
  return new Table("What the model is shown", path, async () => {
    const context = await get(path, { as_of: view.at });
    const window = context.window ? ` of ${count(context.window)}` : "";
    const rows = context.entries.map((entry) => h("tr", null,
      h("th", { scope: "row" }, entryLink(view, entry.id)), h("td", null, speaker(entry)),
      h("td.words", { dir: "auto" }, visible(entry.meta?.preview ?? wordsOf(entry).slice(0, 120))),
      h("td.figure", null, count(entry.meta?.tokens ?? 0))));
    return [
      h("p", null, `${many(rows.length, "entry", "entries")}, ${context.isEstimate ? "about " : ""}${count(context.tokens)}${window} tokens, prefix version ${context.prefixVersion}`),
      table(["Entry", "Who", "Words", "Tokens"], rows, "The model is shown nothing yet."),
    ];
  });
}

const SETTINGS = { model: "Model", thinking: "Thinking", "active-tools": "Active tools", "tool-order": "Tool order", "stream-options": "Stream options", retry: "Retries" };

/** What is stored beside the transcript: the settings, and any value or list by its address. */
export function valuesView(view, place) {
  const path = `${view.path}/conversations/${view.conv}`;
  const { ns = "", key = "" } = place.query;
  const made = new Table("Values and lists", `${path}/values?namespace=${encodeURIComponent(ns || "perdure.model")}`, async () => {
    const settings = await Promise.all(Object.entries(SETTINGS).map(async ([name, label]) => {
      const { values } = await get(`${path}/values`, { namespace: `perdure.${name}`, key: "", as_of: view.at });
      return values.map((one) => valueRow(label, one));
    }));
    return [
      h("h3", null, "Settings"), table(["Setting", "Set at", "Value"], settings.flat(), "Every setting is as the session was opened."),
      ns ? await namedValues(path, view.at, ns, key) : null,
    ];
  });
  made.element.querySelector(".content").before(addressForm(place, ns, key));
  return made;
}

function valueRow(label, one) {
  return h("tr", null, h("th", { scope: "row", dir: "auto" }, visible(label)), h("td.figure", null, `#${one.seq}`), h("td.value", null, folded(one.valueText ?? written(one.value), `Value of ${visible(label)}`)));
}

async function namedValues(path, at, namespace, key) {
  const wanted = at === null ? { prefix: key } : { key, as_of: at };
  const [{ values }, { elements }] = await Promise.all([
    get(`${path}/values`, { namespace, ...wanted, limit: ROWS }),
    get(`${path}/lists`, { namespace, key, newest: true, as_of: at, limit: ROWS }),
  ]);
  return [
    h("h3", null, `Values of ${visible(namespace)}`), table(["Key", "Set at", "Value"], values.map((one) => valueRow(one.key || "(empty)", one)), "No such value."),
    h("h3", null, "List, the newest elements"), table(["Tag", "Added at", "Element"], elements.map((one) => valueRow(one.tag ?? "–", one)), "No element."),
  ];
}

function addressForm(place, ns, key) {
  const namespace = h("input", { type: "text", "aria-label": "Namespace", placeholder: "Namespace", value: ns });
  const name = h("input", { type: "text", "aria-label": "Key", placeholder: "Key, or how keys begin", value: key });
  const form = h("form.filter", { role: "search", "aria-label": "Values and lists" }, namespace, name, h("button", { type: "submit" }, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go({ ...place, query: { ns: namespace.value.trim(), key: name.value } });
  });
  return form;
}

const TOKEN_KINDS = { input: "Input", output: "Output", cacheRead: "Read from cache", cacheWrite: "Written to cache", reasoning: "Reasoning, part of output" };

/** What was used and what it cost, unknown as unknown. */
export function usageView(view) {
  const path = `${view.path}/usage`;
  return new Table("Usage and cost", path, async () => {
    const { usage } = await get(path, { as_of: view.at });
    const rows = Object.entries(TOKEN_KINDS).map(([kind, label]) => h("tr", null, h("th", { scope: "row" }, label),
      h("td.figure", null, count(usage[kind]?.tokens ?? 0)), h("td", null, usage[kind]?.unknownReports ? `${many(usage[kind].unknownReports, "reply", "replies")} did not say` : "–")));
    return [
      h("p.cost", null, money(usage.costs) ?? (usage.unknownCosts ? "unknown" : "nothing yet")),
      h("p.note", null, [`${many(usage.reports ?? 0, "reply", "replies")} reported`, usage.unknownCosts ? `${count(usage.unknownCosts)} of unknown cost` : "", usage.unknownAttempts ? `${many(usage.unknownAttempts, "attempt")} without a report` : ""].filter(Boolean).join(", ")),
      table(["Tokens", "Count", "Unknown"], rows, ""),
    ];
  });
}
