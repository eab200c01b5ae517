// What waits for a decision, in all sessions (WB-28, WB-30).

import { ApprovalCards } from "./approvals.js";
import { h, put } from "./dom.js";
import { get, reason } from "./http.js";

const AGAIN_MS = 400; // an approval decided elsewhere loses its buttons within a second (AQ-11)

export class AllApprovalsPage {
  element;
  crumbs = ["Approvals"];
  #cards = new ApprovalCards("h2");
  #known = new Map();
  #none = h("p.note", null, "Nothing waits for a decision.");
  #outcome = h("p.outcome", { role: "alert" });
  #timer = 0;
  #isOpen = true;

  constructor() {
    document.title = "Approvals · perdure";
    this.element = h("section.page", { "aria-labelledby": "title" },
      h("header.head", null, h("h1", { id: "title", tabindex: "-1" }, "Approvals")), this.#outcome, this.#none, this.#cards.element);
    this.#follow();
  }

  covers({ page }) {
    return page === "approvals";
  }

  show() {}

  close() {
    this.#isOpen = false;
    clearTimeout(this.#timer);
    this.#cards.close();
  }

  async #follow() {
    try {
      if (!document.hidden) await this.#read();
      put(this.#outcome, "");
    } catch (error) {
      put(this.#outcome, `This list is old: ${reason(error)}`);
    }
    if (this.#isOpen) this.#timer = setTimeout(() => this.#follow(), AGAIN_MS);
  }

  async #read() {
    const { approvals } = await get("/approvals", { limit: 1_000 });
    const waiting = new Set(approvals.map(keyOf));
    for (const approval of approvals) this.#known.set(keyOf(approval), approval);
    const gone = [...this.#known].filter(([key, approval]) => !waiting.has(key) && isOpen(approval));
    for (const [key, approval] of gone) this.#known.set(key, await this.#ended(approval));
    this.#none.hidden = this.#known.size > 0;
    this.#cards.show([...this.#known.values()].map((approval) => ({ approval, session: approval.session, name: approval.sessionName })));
  }

  /** Read what became of one that no longer waits. */
  async #ended(approval) {
    const { approvals } = await get(`/sessions/${approval.session}/approvals`, { status: "all", after: approval.id - 1, limit: 1 });
    const [found] = approvals;
    return found?.id === approval.id ? { ...approval, ...found } : { ...approval, status: "cancelled" };
  }
}

function keyOf(approval) {
  return `${approval.session}/${approval.id}`;
}

function isOpen(approval) {
  return approval.status === "waiting" || approval.status === "pending";
}
