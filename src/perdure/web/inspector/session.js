// The frame of one session: its name and views, and the conversation they all read.

import { ApprovalCards } from "./approvals.js";
import { Composer, Queue } from "./composer.js";
import { ConversationView, isOpen } from "./conversation.js";
import { fill, h, put, say } from "./dom.js";
import { reason } from "./http.js";
import { go, VIEWS, write } from "./route.js";
import { Side, stateWords } from "./side.js";
import { Transcript } from "./transcript.js";
import { Travel } from "./travel.js";
import { contextView, tasksView, usageView, valuesView } from "./views.js";
import { timelineView } from "./timeline.js";
import { clock } from "./words.js";

const VERDICT_MS = 60_000; // how long a decision stays at the end of the conversation

const DRAWN = { tasks: tasksView, timeline: timelineView, context: contextView, values: valuesView, usage: usageView };

export class SessionPage {
  element = h("div.session");
  #place;
  #view = null;
  #title = h("h1", { tabindex: "-1" });
  #mood = h("p.mood");
  #tabs = h("nav.tabs", { "aria-label": "Views" });
  #old = h("p.old", { role: "alert", hidden: true });
  #body = h("div.body");
  #travel;
  #part = null; // the view on show: {element, apply?, close?}
  #isRead = false; // whether the part on show is drawn of the view
  #spoken = "";

  constructor(place) {
    this.#place = place;
    const pick = (at) => go({ ...this.#place, at, query: {} });
    this.#travel = new Travel(`/sessions/${place.session}`, pick, () => document.activeElement?.dataset?.entry);
    this.element.append(h("header.head", null, this.#title, this.#mood), this.#old, this.#travel.element, this.#tabs, this.#body);
    this.#open();
  }

  get crumbs() {
    return [this.#view.name || "…"];
  }

  /** Say whether a place is another view, or another time, of what is open already. */
  covers({ page, session, conv }) {
    const isSame = conv === this.#place.conv || conv === String(this.#view.conv);
    return page === "session" && session === this.#place.session && isSame;
  }

  show(place) {
    const isOtherTime = place.at !== this.#place.at;
    this.#place = place;
    if (isOtherTime) this.#open();
    else {
      this.#drawTabs();
      this.#drawPart();
    }
  }

  close() {
    this.#part?.close?.();
    this.#view.close();
  }

  /** Read the conversation at the place's time; what is on show stays until that is there. */
  async #open() {
    const { session, conv, at } = this.#place;
    this.#view?.close();
    const view = new ConversationView(session, conv, at);
    this.#view = view;
    this.#isRead = false;
    view.addEventListener("change", (event) => view === this.#view && this.#changed(event.detail));
    this.#drawTabs();
    this.#travel.show(at);
    try {
      await view.open();
    } catch (error) {
      if (view !== this.#view) return;
      this.#part?.close?.();
      this.#part = null;
      fill(this.#body, h("p.alone", { role: "alert" }, reason(error)));
      return;
    }
    if (view !== this.#view) return;
    put(this.#title, this.#view.name);
    document.title = `${this.#view.name} · perdure`;
    this.element.dispatchEvent(new CustomEvent("named", { bubbles: true }));
    if (!this.#isRead) this.#drawPart();
  }

  #drawTabs() {
    const links = Object.entries(VIEWS).map(([view, label]) => {
      const place = { ...this.#place, view, query: {} };
      return h("a", { href: write(place), "aria-current": view === this.#place.view ? "page" : null, "data-view": view }, label);
    });
    this.#tabs.replaceChildren(...links);
  }

  #drawPart() {
    this.#isRead = true;
    this.#part?.close?.();
    const { view } = this.#place;
    if (view === "conversation") this.#part = new TalkPart(this.#view, this.#place);
    else if (view === "approvals") this.#part = new ApprovalsPart(this.#view);
    else this.#part = DRAWN[view](this.#view, this.#place);
    this.#body.replaceChildren(this.#part.element);
    this.#part.shown?.();
  }

  #changed(detail) {
    put(this.#mood, stateWords(this.#view));
    this.#mood.dataset.mood = this.#view.mood;
    if (detail.what === "connection") this.#connection();
    if (detail.what === "base" && !this.#isRead) this.#drawPart();
    else if (this.#isRead) this.#part?.apply?.(detail);
    const words = stateWords(this.#view).slice(2);
    if (words !== this.#spoken && detail.what !== "delta") {
      this.#spoken = words;
      if (this.#view.at === null) say(words);
    }
  }

  #connection() {
    const { live, since, error } = this.#view.connection;
    this.#old.hidden = live;
    if (live) return;
    const again = h("button.quiet", { type: "button", onclick: () => this.#view.again() }, "Try now");
    fill(this.#old, `This is how it stood at ${clock(since)}: ${error}. Trying again. `, again);
  }

  /** Keys of this page; answers whether one was taken. */
  key(key) {
    if (key === ".") go({ ...this.#place, view: "context", query: {} });
    else if (key === "a") go({ ...this.#place, view: "approvals", query: {} });
    else if (key === "g") this.#travel.ask((entry) => go({ ...this.#place, view: "conversation", query: { entry } }));
    else return this.#part?.key?.(key) ?? false;
    return true;
  }
}

/** The conversation itself: transcript, approvals that wait, queue, composer, and what is beside. */
class TalkPart {
  element;
  #view;
  #place;
  #transcript;
  #cards = new ApprovalCards();
  #queue;
  #composer;
  #side;
  #search;

  constructor(view, place) {
    this.#view = view;
    this.#place = place;
    this.#transcript = new Transcript(view);
    this.#queue = new Queue(view);
    this.#side = new Side(view);
    this.#composer = view.at === null ? new Composer(view) : null;
    this.#search = this.#searchBox();
    this.element = h("div.talk", null,
      h("div.column", null, this.#search, this.#transcript.element, this.#cards.element, this.#queue.element,
        h("div.dock", null, this.#transcript.later, this.#composer?.element)),
      this.#side.element);
    this.#showApprovals();
  }

  close() {
    this.#transcript.close();
    this.#cards.close();
    this.#composer?.close();
    this.#side.close();
  }

  shown() {
    const entry = Number(this.#place.query.entry);
    if (entry) this.#transcript.show(entry);
    else this.#transcript.toEnd();
  }

  apply(detail) {
    if (detail.what === "delta") {
      this.#transcript.streamed();
      return;
    }
    if (detail.what === "base" || detail.what === "window") this.#transcript.drawAll();
    else if (detail.what === "approvals") this.#transcript.refresh();
    else if (detail.what === "commit") this.#transcript.apply(detail);
    if (detail.what === "usage") this.#side.spending();
    if (detail.what === "approvals" || detail.what === "commit") this.#showApprovals();
    this.#queue.update();
    this.#side.update();
    this.#composer?.update();
  }

  #showApprovals() {
    if (this.#view.at !== null) return;
    const { session, name } = this.#view;
    const isShown = (approval) => isOpen(approval) || Date.now() - (approval.endedMs ?? 0) < VERDICT_MS;
    this.#cards.show([...this.#view.approvals.values()].filter(isShown).map((approval) => ({ approval, session, name })));
  }

  #searchBox() {
    const field = h("input", { type: "search", "aria-label": "Search the loaded entries", placeholder: "Search" });
    const outcome = h("span.hint", { role: "status" });
    const box = h("form.search", { hidden: true, role: "search" }, field, outcome);
    box.addEventListener("submit", (event) => {
      event.preventDefault();
      put(outcome, this.#transcript.find(field.value) ? "" : "Not among the loaded entries.");
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      box.hidden = true;
      this.#transcript.step(0);
    });
    return box;
  }

  key(key) {
    if (key === "j") this.#transcript.step(1);
    else if (key === "k") this.#transcript.step(-1);
    else if (key === "]") this.#transcript.step(1, ".entry.is-user");
    else if (key === "[") this.#transcript.step(-1, ".entry.is-user");
    else if (key === "/") {
      this.#search.hidden = false;
      this.#search.querySelector("input").focus();
    } else if (key === "i" && this.#composer) this.#composer.focus();
    else return false;
    return true;
  }
}

/** The approvals of this session, on a page of their own. */
class ApprovalsPart {
  element;
  #view;
  #cards = new ApprovalCards();
  #none = h("p.note", null, "Nothing waits for a decision.");

  constructor(view) {
    this.#view = view;
    this.element = h("section.page", { "aria-label": "Approvals" }, h("h2", null, "Approvals"), this.#none, this.#cards.element);
    this.apply();
  }

  apply() {
    const { session, name, approvals } = this.#view;
    this.#none.hidden = approvals.size > 0;
    this.#cards.show([...approvals.values()].map((approval) => ({ approval, session, name })));
  }

  close() {
    this.#cards.close();
  }
}
