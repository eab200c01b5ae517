// The transcript: a window of entries in the page, filled and emptied as one scrolls (WB-36).

import { callsOf, drawEntry, drawPart, outputOf, wordsOf } from "./entries.js";
import { roleOf } from "./conversation.js";
import { h, put } from "./dom.js";
import { write } from "./route.js";
import { argumentsOf, prose, visible } from "./text.js";
import { many, SIGNS } from "./words.js";

const ELEMENTS_MAX = 2_000;
const NEAR = 600; // pixels before an end at which the next page is loaded
const PLAIN_FROM = 20_000; // characters from which streaming text is drawn without boxes

export class Transcript {
  element;
  #view;
  #list = h("div.entries", { role: "feed", "aria-label": "Transcript" });
  #live = h("div.live");
  #earlier = h("p.edge");
  later; // the way back to the end, for the dock
  #kept = new Map();
  #drawn = new Map(); // entry id → element
  #results = new Map(); // "entry/callIndex" → result entry
  #frame = 0;
  #sticks = true;
  #isLoading = false;
  #unread = 0;

  constructor(view) {
    this.#view = view;
    this.later = h("button.later", { type: "button", hidden: true, onclick: () => this.toEnd() });
    this.element = h("section.transcript", { "aria-label": "Conversation" }, h("h2.unseen", null, "Transcript"), this.#earlier, this.#list, this.#live);
    this.element.addEventListener("click", (event) => this.#clicked(event));
    this.onscroll = () => this.#scrolled();
    addEventListener("scroll", this.onscroll, { passive: true });
    this.drawAll();
  }

  close() {
    removeEventListener("scroll", this.onscroll);
    cancelAnimationFrame(this.#frame);
  }

  // -------------------------------------------------------------- what is shown

  /** Draw the whole window anew. */
  drawAll() {
    this.#drawn.clear();
    this.#results.clear();
    for (const entry of this.#view.entries.values()) this.#note(entry);
    this.#list.replaceChildren();
    this.#order().forEach((entry) => this.#list.append(this.#draw(entry)));
    this.#edges();
    this.drawLive();
    if (this.#sticks) this.#toBottom();
  }

  /** Take in what a commit brought. */
  apply({ entries, context }) {
    const wasAtEnd = this.#sticks;
    for (const entry of entries) this.#note(entry);
    if (context || entries.some((entry) => entry.kind === "summary")) this.drawAll();
    else for (const entry of entries) this.#take(entry);
    this.refresh();
    this.drawLive();
    if (wasAtEnd) {
      this.#trim("older");
      this.#toBottom();
    } else if (entries.length) this.#unread += entries.length;
    this.#edges();
  }

  #take(entry) {
    if (this.#isHidden(entry)) return;
    if (this.#view.entries.has(entry.id) && !this.#drawn.has(entry.id)) this.#list.append(this.#draw(entry));
  }

  #note(entry) {
    if (entry.kind === "tool_result" || entry.kind === "call_result") {
      this.#results.set(`${entry.meta?.answers}/${entry.callIndex ?? 0}`, entry);
    }
  }

  /** Answer the entries in the order they are drawn: a summary stands right after its `through`. */
  #order() {
    const shown = [...this.#view.entries.values()].filter((entry) => !this.#isHidden(entry));
    const summaries = [...this.#view.summaries.values()].sort((a, b) => a.id - b.id);
    if (!summaries.length) return shown;
    const ids = [...this.#view.entries.keys()];
    const order = shown.filter((entry) => !this.#view.summaries.has(entry.id));
    for (const summary of summaries) this.#place(summary, order, ids);
    return order;
  }

  #place(summary, order, ids) {
    if (summary.through < ids[0]) {
      const heads = order.findIndex((entry) => entry.kind !== "summary");
      order.splice(heads < 0 ? order.length : heads, 0, summary);
      return;
    }
    if (summary.through > ids.at(-1)) return;
    let at = order.findIndex((entry) => entry.kind !== "summary" && entry.id > summary.through);
    if (at < 0) at = order.length;
    order.splice(at, 0, summary);
  }

  #isHidden(entry) {
    if (entry.kind === "input") return true;
    if (entry.kind !== "tool_result" && entry.kind !== "call_result") return false;
    const caller = this.#view.entries.get(entry.meta?.answers);
    return caller !== undefined && callsOf(caller).length > (entry.callIndex ?? 0);
  }

  #draw(entry) {
    const element = drawEntry(entry, this.#look());
    for (const box of element.querySelectorAll("details.call")) box.dataset.seen = this.#stateOf(box);
    this.#drawn.set(entry.id, element);
    return element;
  }

  #look() {
    const view = this.#view;
    return {
      task: (entry, index) => this.#taskOf(entry, index),
      scratch: (task) => view.scratch.get(task?.id),
      decision: (task) => view.decisions.get(task),
      result: (entry, index) => this.#results.get(`${entry.id}/${index}`),
      removal: (entry) => removalOf(view, entry),
      link: (entry) => write({ page: "session", session: view.session, conv: view.conv, view: "conversation", at: view.at, query: { entry: entry.id } }),
      kept: (key) => {
        if (!this.#kept.has(key)) this.#kept.set(key, {});
        return this.#kept.get(key);
      },
    };
  }

  #taskOf(entry, index) {
    const is = (task) => task.kind === "tool" && task.at === entry.id && (task.state?.callIndex ?? 0) === index;
    return [...this.#view.tasks.values()].find(is) ?? [...this.#view.ended.values()].find(is);
  }

  /** Draw calls anew whose task, result or decision changed. */
  refresh() {
    const stale = new Set();
    for (const box of this.#list.querySelectorAll("details.call")) {
      if (box.dataset.seen !== this.#stateOf(box)) stale.add(Number(box.dataset.call.split("/")[0]));
    }
    for (const id of stale) this.#redraw(this.#view.entries.get(id));
  }

  /** What a drawn call depends on, in one word. */
  #stateOf(box) {
    const [id, index] = box.dataset.call.split("/").map(Number);
    const result = this.#results.get(box.dataset.call);
    const entry = this.#view.entries.get(id);
    const task = result || !entry ? undefined : this.#taskOf(entry, index);
    const decision = this.#view.decisions.get(result?.by ?? task?.id);
    return `${result?.id} ${task?.status} ${task?.abort} ${decision?.decision?.timestamp}`;
  }

  #redraw(entry) {
    const old = entry && this.#drawn.get(entry.id);
    if (!old?.isConnected) return;
    const focus = focusWithin(old);
    const fresh = this.#draw(entry);
    old.replaceWith(fresh);
    restoreFocus(fresh, focus);
  }

  // ------------------------------------------------------------------ what runs

  /** Draw streaming text at most once a frame, however many deltas came. */
  streamed() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.drawLive();
      this.#drawOutputs();
      if (this.#sticks) this.#toBottom();
    });
  }

  /** Show the end of what each running call has written. */
  #drawOutputs() {
    for (const box of this.#list.querySelectorAll("details.call .running")) {
      const [id, index] = box.closest("details").dataset.call.split("/").map(Number);
      const entry = this.#view.entries.get(id);
      const scratch = entry && this.#view.scratch.get(this.#taskOf(entry, index)?.id);
      if (scratch) put(box, visible(outputOf(scratch)));
    }
  }

  drawLive() {
    const view = this.#view;
    const wanted = view.hasNewer ? [] : [...view.tasks.values()].filter((task) => task.kind === "generation" && roleOf(task) === "working");
    const here = wanted.filter((task) => String(task.conv) === String(view.conv));
    const known = new Map([...this.#live.children].map((child) => [Number(child.dataset.task), child]));
    for (const [id, child] of known) if (!here.some((task) => task.id === id)) child.remove();
    for (const task of here) {
      let box = known.get(task.id);
      if (!box) {
        box = h("article.entry.is-assistant.streaming", { "data-task": task.id, "aria-label": "Reply being written" },
          h("header", null, h("h3.who", null, "Model"), h("span.state", { "data-mood": "busy" }, `${SIGNS.working} writing`)), h("div.parts"));
        this.#live.append(box);
      }
      drawScratch(box.lastElementChild, view.scratch.get(task.id));
    }
  }

  // ------------------------------------------------------------------ scrolling

  #scrolled() {
    const page = document.scrollingElement;
    const below = page.scrollHeight - page.scrollTop - innerHeight;
    this.#sticks = below < 48 && !this.#view.hasNewer;
    if (this.#sticks) this.#unread = 0;
    this.#edges();
    if (page.scrollTop < NEAR && this.#view.hasOlder) this.load("older");
    else if (below < NEAR && this.#view.hasNewer) this.load("newer");
  }

  /** Load the next page at one end, and let the other end go. */
  async load(direction) {
    if (this.#isLoading) return;
    this.#isLoading = true;
    try {
      const fresh = await this.#view.more(direction);
      fresh.forEach((entry) => this.#note(entry));
      this.#keepPlace(() => {
        this.#rewindow();
        this.#trim(direction === "older" ? "newer" : "older");
      });
    } catch {
      // The connection's own sign says that the view is old; scrolling tries again.
    } finally {
      this.#isLoading = false;
      this.#edges();
    }
  }

  /** Make the list's children those of the window, keeping every element that stays. */
  #rewindow() {
    const order = this.#order();
    const stays = new Set(order.map((entry) => entry.id));
    for (const [id, element] of this.#drawn) if (!stays.has(id)) this.#forget(id, element);
    let at = this.#list.firstElementChild;
    for (const entry of order) {
      const element = this.#drawn.get(entry.id) ?? this.#draw(entry);
      if (element === at) at = at.nextElementSibling;
      else this.#list.insertBefore(element, at);
    }
    this.refresh();
  }

  #forget(id, element) {
    element.remove();
    this.#drawn.delete(id);
  }

  #trim(direction) {
    const ids = [...this.#view.entries.keys()];
    const dropped = [];
    let surplus = this.#list.getElementsByTagName("*").length - ELEMENTS_MAX;
    while (surplus > 0 && ids.length > 1) {
      const id = direction === "older" ? ids.shift() : ids.pop();
      const element = this.#drawn.get(id);
      if (element) {
        surplus -= element.getElementsByTagName("*").length + 1;
        this.#forget(id, element);
      }
      dropped.push(id);
      this.#forgetKept(id);
    }
    if (dropped.length) this.#view.drop(dropped, direction);
  }

  #forgetKept(id) {
    for (const [key, entry] of this.#results) if (entry.id === id || key.startsWith(`${id}/`)) this.#results.delete(key);
  }

  /** Change the list without moving what is read. */
  #keepPlace(change) {
    const anchor = [...this.#list.children].find((child) => child.getBoundingClientRect().bottom > 0);
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (anchor?.isConnected) scrollBy(0, anchor.getBoundingClientRect().top - before);
  }

  #edges() {
    const view = this.#view;
    put(this.#earlier, view.hasOlder ? "Earlier entries load as you scroll up." : view.entries.size ? "The beginning." : "Nothing was said yet.");
    const isAway = view.hasNewer || !this.#sticks;
    this.later.hidden = !isAway || !view.entries.size;
    put(this.later, this.#unread ? `${many(this.#unread, "new entry", "new entries")}, go to the end` : "Go to the end");
  }

  #toBottom() {
    scrollTo(0, document.scrollingElement.scrollHeight);
  }

  async toEnd() {
    this.#sticks = true;
    this.#unread = 0;
    if (this.#view.hasNewer) await this.#view.around(null);
    this.drawAll();
    this.#toBottom();
    this.#edges();
  }

  /** Show an entry, loading the window around it when it is not there. */
  async show(id) {
    this.#sticks = false;
    if (!this.#view.entries.has(id)) {
      await this.#view.around(id);
      this.drawAll();
    }
    const result = this.#view.entries.get(id);
    const element = this.#drawn.get(id) ?? this.#drawn.get(result?.meta?.answers);
    focusOn(element);
    return Boolean(element);
  }

  // ------------------------------------------------------------------- keyboard

  /** Move to the entry before or after the one that has the focus, or that is on top. */
  step(by, selector = ".entry") {
    const entries = [...this.#list.querySelectorAll(selector)];
    const current = document.activeElement?.closest?.(".entry");
    if (!current) {
      const inView = entries.filter((entry) => entry.getBoundingClientRect().top < innerHeight);
      focusOn((by > 0 ? inView.find((entry) => entry.getBoundingClientRect().bottom > 80) : inView.at(-1)) ?? entries[0]);
      return;
    }
    const follows = (entry) => current.compareDocumentPosition(entry) & Node.DOCUMENT_POSITION_FOLLOWING;
    focusOn(by > 0 ? entries.find(follows) : entries.findLast((entry) => entry !== current && !follows(entry)));
  }

  /** Find the next loaded entry that holds these words; answers whether there is one. */
  find(words) {
    const wanted = words.toLowerCase();
    const entries = [...this.#list.querySelectorAll(".entry")];
    const start = entries.indexOf(document.activeElement?.closest?.(".entry"));
    const turned = [...entries.slice(start + 1), ...entries.slice(0, start + 1)];
    const found = turned.find((element) => {
      const entry = this.#view.entries.get(Number(element.dataset.entry)) ?? this.#view.summaries.get(Number(element.dataset.entry));
      return entry && (wordsOf(entry).toLowerCase().includes(wanted) || element.textContent.toLowerCase().includes(wanted));
    });
    focusOn(found);
    return Boolean(found);
  }

  #clicked(event) {
    const all = event.target.closest("[data-all]");
    if (all) {
      const id = Number(all.dataset.all);
      this.#look().kept(id).all = true;
      this.#redraw(this.#view.entries.get(id));
    }
  }
}

function drawScratch(box, scratch) {
  const parts = scratch?.parts.filter(Boolean) ?? [];
  if (!parts.length) {
    put(box, "…");
    return;
  }
  const text = JSON.stringify(parts.map((part) => [part.type, part.text.length]));
  if (box.dataset.state === text) return;
  box.dataset.state = text;
  box.replaceChildren(...parts.map(drawStreaming));
}

function drawStreaming(part) {
  if (part.type === "text") return part.text.length > PLAIN_FROM ? h("div.prose.plain", null, visible(part.text)) : prose(part.text);
  if (part.type === "toolCall") {
    return h("div.call.unfinished", null, h("p", null, h("span.tool", null, part.name), " is being called with"), argumentsOf(part.text));
  }
  return drawPart(part, {});
}

/** Say why an entry is not in the context list, or null when it is. */
export function removalOf(view, entry) {
  if (view.context.has(entry.id) || !view.state) return null;
  if (entry.kind === "tool_result" && view.context.has(entry.meta?.answers)) return null;
  const head = [...view.context][0];
  const summary = view.summaries.get(head);
  if (entry.kind === "summary") return "not in the context: another summary took its place";
  if (summary && entry.id <= summary.through) return `not in the context: summed up in #${summary.id} by commit ${summary.commitEnd}`;
  if (head !== undefined && entry.id < head) return `not in the context: before the reset that left #${head} first`;
  return "not in the context: never placed there";
}

function focusOn(element) {
  if (!element) return;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "nearest" });
}

function focusWithin(element) {
  const focused = document.activeElement;
  if (!element.contains(focused)) return null;
  const all = [...element.querySelectorAll("summary, button, a, [tabindex]")];
  return focused === element ? -1 : all.indexOf(focused);
}

function restoreFocus(element, at) {
  if (at === null) return;
  if (at < 0) element.focus({ preventScroll: true });
  else element.querySelectorAll("summary, button, a, [tabindex]")[at]?.focus({ preventScroll: true });
}
