// All sessions: those that wait for a person first; filter and sort live in the address (WB-26).

import { fill, h, put } from "./dom.js";
import { get, reason, requestId, send } from "./http.js";
import { once } from "./actions.js";
import { go, write } from "./route.js";
import { visible } from "./text.js";
import { age, count, many, moment, money, SIGNS } from "./words.js";

const PAGE = 1_000;
const ROWS = 100;
const AGAIN_MS = 2_000;

const STATES = {
  working: [SIGNS.working, "working", "busy"],
  suspended: [SIGNS.idle, "suspended", "wait"],
  idle: [SIGNS.idle, "idle", "off"],
  empty: [SIGNS.off, "empty", "off"],
  owned: [SIGNS.off, "owned elsewhere", "off"],
  faulted: [SIGNS.bad, "faulted", "bad"],
  damaged: [SIGNS.bad, "damaged", "bad"],
};
const SORTS = { waiting: "Waiting first", newest: "Newest first", name: "By name" };

export class SessionsPage {
  element;
  #place;
  #sessions = [];
  #details = new Map();
  #rows = h("tbody");
  #outcome = h("p.outcome", { role: "alert" });
  #found = h("p.note", { role: "status" });
  #more = h("button.quiet", { type: "button", hidden: true });
  #shown = ROWS;
  #timer = 0;
  #isOpen = true;

  constructor(place) {
    this.#place = place;
    document.title = "Sessions · perdure";
    this.#more.addEventListener("click", () => {
      this.#shown += ROWS;
      this.#draw();
    });
    this.element = h("section.page.wide", { "aria-labelledby": "title" },
      h("header.head", null, h("h1", { id: "title", tabindex: "-1" }, "Sessions"), this.#makeForm()),
      this.#filter(), this.#outcome, this.#found,
      h("table.sessions", null,
        h("thead", null, h("tr", null, ["Session", "State", "Last words", "Spent", "Age"].map((name) => h("th", { scope: "col" }, name)))),
        this.#rows), this.#more);
    this.#follow();
  }

  get crumbs() {
    return [];
  }

  covers({ page }) {
    return page === "sessions";
  }

  show(place) {
    this.#place = place;
    this.#draw();
  }

  close() {
    this.#isOpen = false;
    clearTimeout(this.#timer);
  }

  async #follow() {
    const begun = Date.now();
    try {
      if (!document.hidden) await this.#read();
      put(this.#outcome, "");
    } catch (error) {
      put(this.#outcome, `This list is old: ${reason(error)}`);
    }
    const took = Date.now() - begun; // many sessions are looked at more seldom
    if (this.#isOpen) this.#timer = setTimeout(() => this.#follow(), Math.max(AGAIN_MS, 5 * took));
  }

  async #read() {
    const found = [];
    let after = null;
    do {
      const page = await get("/sessions", { limit: PAGE, after });
      found.push(...page.sessions);
      after = page.next;
      if (!this.#sessions.length && after !== null) this.#draw(found);
    } while (after !== null && this.#isOpen);
    this.#sessions = found;
    this.#draw();
  }

  #filter() {
    const { q = "", state = "", sort = "waiting" } = this.#place.query;
    const change = () => {
      const query = { q: words.value, state: states.value, sort: sorts.value === "waiting" ? "" : sorts.value };
      this.#shown = ROWS;
      go({ page: "sessions", query }, { replace: true });
    };
    const words = h("input", { type: "search", id: "filter", value: q, placeholder: "Filter by name or words", "aria-label": "Filter", oninput: change });
    const states = h("select", { "aria-label": "State", onchange: change },
      h("option", { value: "" }, "Any state"),
      Object.entries(STATES).map(([value, [, label]]) => h("option", { value, selected: value === state }, label)));
    const sorts = h("select", { "aria-label": "Order", onchange: change },
      Object.entries(SORTS).map(([value, label]) => h("option", { value, selected: value === sort }, label)));
    return h("form.filter", { role: "search", onsubmit: (event) => event.preventDefault() }, words, states, sorts);
  }

  #makeForm() {
    const name = h("input", { type: "text", "aria-label": "Name of a new session", placeholder: "New session", autocomplete: "off" });
    const button = h("button", { type: "submit" }, "Create");
    let id = null;
    name.addEventListener("input", () => (id = null));
    const form = h("form.make", null, name, button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!name.value.trim()) return name.focus();
      return once(button, this.#outcome, async () => {
        id ??= requestId();
        const made = await send("POST", "/sessions", { name: name.value, request_id: id });
        go({ page: "session", session: made.id, conv: "root", view: "conversation", at: null, query: {} });
      });
    });
    return form;
  }

  #draw(sessions = this.#sessions) {
    const chosen = arranged(sessions, this.#place.query);
    const shown = chosen.slice(0, this.#shown);
    const focused = document.activeElement?.closest?.("tr")?.dataset.session;
    fill(this.#rows, shown.map((session) => this.#row(session)));
    if (focused) this.#rows.querySelector(`tr[data-session="${CSS.escape(focused)}"] a`)?.focus();
    put(this.#found, sessions.length ? `${many(chosen.length, "session")}${chosen.length < sessions.length ? ` of ${count(sessions.length)}` : ""}` : "No session yet.");
    this.#more.hidden = shown.length === chosen.length;
    put(this.#more, `Show more, ${count(chosen.length - shown.length)} left`);
    this.#readDetails(shown);
  }

  #row(session) {
    const [sign, words, mood] = STATES[session.state] ?? [SIGNS.off, session.state, "off"];
    const details = this.#details.get(session.id) ?? {};
    const place = { page: "session", session: session.id, conv: "root", view: "conversation", at: null, query: {} };
    return h("tr", { "data-session": session.id },
      h("th", { scope: "row" }, h("a", { href: write(place), dir: "auto" }, visible(session.name)), h("span.folder", null, details.folder ?? session.folder ?? "")),
      h("td", null, h("span.state", { "data-mood": mood }, h("span.sign", { "aria-hidden": "true" }, sign), ` ${words}`),
        session.approvals ? h("a.asks", { href: write({ ...place, view: "approvals" }) }, `${SIGNS.waiting} ${many(session.approvals, "approval")}`) : null),
      h("td.words", { dir: "auto" }, visible(details.lastWords ?? "")),
      h("td.figure", null, money(details.usage?.costs) ?? "–"),
      h("td.figure", { title: session.lastCommitMs ? moment(session.lastCommitMs) : null }, session.lastCommitMs ? age(session.lastCommitMs) : "–"));
  }

  /** Read last words and cost of the rows on show, and again when they changed. */
  async #readDetails(shown) {
    for (const session of shown) {
      const known = this.#details.get(session.id);
      if (known?.lastSeq === session.lastSeq || !this.#isOpen) continue;
      this.#details.set(session.id, { ...known, lastSeq: session.lastSeq });
      try {
        const [{ sessions: [detail] }, { usage }] = await Promise.all([
          get("/sessions", { name: session.name, detail: true }),
          get(`/sessions/${session.id}/usage`),
        ]);
        if (!detail) continue;
        this.#details.set(session.id, { ...detail, usage, lastSeq: session.lastSeq });
        const row = this.#rows.querySelector(`tr[data-session="${CSS.escape(session.id)}"]`);
        if (row && !row.contains(document.activeElement)) row.replaceWith(this.#row(session));
      } catch {
        this.#details.delete(session.id);
        return;
      }
    }
  }

  key(key) {
    if (key === "/") this.element.querySelector("#filter").focus();
    else if (key === "j" || key === "k") this.#step(key === "j" ? 1 : -1);
    else return false;
    return true;
  }

  #step(by) {
    const links = [...this.#rows.querySelectorAll("th a")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  }
}

/** Filter and sort sessions as the address says. */
export function arranged(sessions, { q = "", state = "", sort = "waiting" }) {
  const words = q.toLowerCase();
  const chosen = sessions.filter((session) => (!state || session.state === state) && (!words || session.name.toLowerCase().includes(words)));
  const newest = (a, b) => b.lastCommitMs - a.lastCommitMs;
  const orders = {
    waiting: (a, b) => Number(b.approvals > 0) - Number(a.approvals > 0) || newest(a, b),
    newest,
    name: (a, b) => (a.name < b.name ? -1 : 1),
  };
  return chosen.sort(orders[sort] ?? orders.waiting);
}
