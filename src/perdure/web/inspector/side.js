// Beside the conversation: what runs, what it costs, what the model is shown.

import { roleOf } from "./conversation.js";
import { h, put } from "./dom.js";
import { count, many, money, SIGNS, span } from "./words.js";

const KINDS = { generation: "Model request", post_tools: "Join of calls", approval: "Decision", collapse: "Summing up", subagent: "Subagent", job: "Job" };
const SIGN_OF = { working: SIGNS.working, waiting: SIGNS.waiting, planned: SIGNS.idle, ended: SIGNS.good };
const WORD_OF = { working: "running", waiting: "waits", planned: "planned", ended: "ended" };

export function taskName(task) {
  return task.kind === "tool" ? (task.state?.name ?? "Call") : (KINDS[task.kind] ?? task.kind);
}

export class Side {
  element;
  #view;
  #state = h("p.mood");
  #tasks = h("ul.tasks");
  #spent = h("div.spent");
  #context = h("p");
  #tick;

  constructor(view) {
    this.#view = view;
    this.element = h("aside.side", { "aria-label": "Now" },
      h("section", null, h("h2", null, "Now"), this.#state, this.#tasks),
      h("section", { id: "spent" }, h("h2", null, "Spent"), this.#spent),
      h("section", null, h("h2", null, "Context"), this.#context));
    this.#tick = setInterval(() => this.#drawTasks(), 1_000);
    this.update();
    this.spending();
  }

  close() {
    clearInterval(this.#tick);
  }

  update() {
    const view = this.#view;
    put(this.#state, stateWords(view));
    this.#state.dataset.mood = view.mood;
    this.#drawTasks();
    put(this.#context, `${many(view.context.size, "entry", "entries")} shown to the model`);
  }

  #drawTasks() {
    const tasks = [...this.#view.tasks.values()].filter((task) => task.kind !== "approval");
    const shown = tasks.slice(0, 20);
    const key = shown.map((task) => `${task.id}${task.status}${task.abort}`).join();
    if (this.#tasks.dataset.key !== key) {
      this.#tasks.dataset.key = key;
      this.#tasks.replaceChildren(...shown.map((task) => drawTask(task)));
      if (tasks.length > shown.length) this.#tasks.append(h("li", null, `and ${tasks.length - shown.length} more`));
    }
    for (const field of this.#tasks.querySelectorAll("[data-since]")) put(field, span(Math.max(1_000, Date.now() - Number(field.dataset.since))));
  }

  /** Draw what was spent, against each limit. */
  spending() {
    const { usage, budgets } = this.#view;
    if (!usage) return;
    const cost = money(usage.costs);
    const lines = [
      h("p.cost", null, cost ?? (usage.unknownCosts ? "unknown" : "nothing yet")),
      usage.unknownCosts ? h("p.note", null, `and ${many(usage.unknownCosts, "reply", "replies")} of unknown cost`) : null,
      h("p.note", null, `${count(usage.input?.tokens ?? 0)} tokens in, ${count(usage.output?.tokens ?? 0)} out`),
      ...budgets.flatMap(drawBudget),
    ];
    this.#spent.replaceChildren(...lines.filter(Boolean));
  }
}

function drawTask(task) {
  const role = roleOf(task);
  return h("li", { "data-task": task.id },
    h("span.sign", { "aria-hidden": "true" }, SIGN_OF[role]),
    h("span.name", null, taskName(task)),
    h("span.note", null, `${task.abort ? "being cancelled" : WORD_OF[role]} `, role === "working" && task.since ? h("span", { "data-since": task.since }) : null));
}

/** Say in words what the session does. */
export function stateWords(view) {
  if (view.fault) return `${SIGNS.bad} Faulted: ${view.fault}`;
  const waiting = view.waitingApprovals().length;
  if (waiting) return `${SIGNS.waiting} ${many(waiting, "decision")} awaited`;
  if (view.isWorking) return `${SIGNS.working} Working`;
  return view.tasks.size ? `${SIGNS.idle} Suspended` : `${SIGNS.idle} Idle`;
}

function drawBudget(budget) {
  return (budget.limits ?? []).map(({ field, limit, spent, unknown }) => {
    const share = Number(limit) ? Math.min(1, Number(spent) / Number(limit)) : 1;
    return h("div.budget", null,
      h("p.note", null, `${field}: ${spent} of ${limit}${field === "cost" ? ` ${budget.currency}` : ""}${unknown ? `, and ${unknown} unknown` : ""}`),
      h("meter", { min: "0", max: "1", high: "0.8", optimum: "0", value: String(share), "aria-label": `${field} spent` }));
  });
}
