// Approvals: everything that is asked, in full, before anything can be granted (AQ-05, WB-30).

import { actor, command, copy, tell } from "./actions.js";
import { h, put } from "./dom.js";
import { send } from "./http.js";
import { argumentsOf, visible } from "./text.js";
import { age, clock, moment, SIGNS } from "./words.js";

const VERDICTS = { granted: "Granted", denied: "Denied", cancelled: "Cancelled" };

/** Draws approvals by id, and keeps each card while it is asked about. */
export class ApprovalCards {
  element = h("div.approvals");
  #heading;
  #cards = new Map();

  /** `heading` is the element of a card's title, which depends on what stands above. */
  constructor(heading = "h3") {
    this.#heading = heading;
  }

  /** Show these approvals: `[{approval, session, name}]`. Cards that are gone are taken away. */
  show(asked) {
    const keys = new Set(asked.map(keyOf));
    for (const [key, card] of this.#cards) if (!keys.has(key)) this.#remove(key, card);
    for (const one of asked) {
      const key = keyOf(one);
      if (!this.#cards.has(key)) {
        const card = new Card(one, this.#heading);
        this.#cards.set(key, card);
        this.element.append(card.element);
      }
      this.#cards.get(key).update(one.approval);
    }
  }

  #remove(key, card) {
    card.close();
    card.element.remove();
    this.#cards.delete(key);
  }

  close() {
    for (const card of this.#cards.values()) card.close();
  }
}

function keyOf({ session, approval }) {
  return `${session}/${approval.id}`;
}

class Card {
  element;
  #asked;
  #buttons;
  #verdict = h("p.verdict");
  #outcome = h("p.outcome", { role: "alert" });
  #hint;
  #grant;
  #words;
  #watch = null;
  #isSeen = false;

  constructor(asked, heading) {
    this.#asked = asked;
    const { approval, session, name } = asked;
    const title = approval.tool ? [h("strong", null, approval.tool), " asks to run"] : approval.budget ? "A budget is reached" : "A question";
    const path = (approval.path ?? [approval.conv]).join(" → ");
    this.element = h("article.approval", { "data-approval": approval.id, tabindex: "-1", "aria-label": `Approval ${approval.id}` },
      h("header", null, h(heading, null, title), h("span.stamp", null,
        h("time", { datetime: new Date(approval.askedMs).toISOString(), title: moment(approval.askedMs) }, `asked ${clock(approval.askedMs)}, ${age(approval.askedMs)}`))),
      h("p.facts", null, h("a", { href: `#/s/${session}/c/${approval.conv}` }, name), ` · conversation ${path} · approval #${approval.id}`),
      approval.prompt ? h("p.prompt", { dir: "auto" }, visible(approval.prompt)) : null,
      this.#arguments(approval),
      this.#form(approval, session, name), this.#verdict, this.#outcome);
    this.#follow();
  }

  close() {
    this.#watch?.disconnect();
  }

  #arguments(approval) {
    if (approval.argsText === undefined || approval.argsText === null) return h("span.end");
    const box = argumentsOf(approval.argsText, `Arguments of ${approval.tool}`);
    box.append(h("span.end"));
    return [box, h("button.quiet.copy", { type: "button", onclick: () => copy(approval.argsText) }, "Copy the arguments")];
  }

  #form(approval, session, name) {
    this.#words = h("input", { type: "text", id: `words-${session}-${approval.id}`, autocomplete: "off" });
    const raise = approval.budget ? raiseField(approval) : null;
    this.#hint = h("p.hint", { id: `hint-${session}-${approval.id}` }, "Scroll to the end of the arguments to grant.");
    this.#grant = actor(".primary", raise ? "Raise and go on" : "Grant", this.#outcome, () => this.#decide("grant", raise?.read()));
    this.#grant.disabled = true;
    this.#grant.setAttribute("aria-describedby", this.#hint.id);
    const deny = actor(".stop", "Deny", this.#outcome, () => this.#decide("deny"));
    this.#buttons = h("div.decide", null,
      raise?.element,
      h("label", { for: this.#words.id }, "Words with the decision, optional"), this.#words,
      h("div.row", null, this.#grant, deny, this.#hint),
      command("approve", "--session", name, String(approval.id)));
    return this.#buttons;
  }

  /** Grant is possible only once the end of the arguments has been on the screen. */
  #follow() {
    const end = this.element.querySelector(".end");
    this.#watch = new IntersectionObserver((seen) => {
      if (!seen.some((one) => one.isIntersecting)) return;
      this.#isSeen = true;
      this.#watch.disconnect();
      this.#grant.disabled = false;
      this.#hint.hidden = true;
    }, { threshold: 0 });
    this.#watch.observe(end);
  }

  async #decide(decision, details) {
    const { approval, session } = this.#asked;
    const words = this.#words.value.trim();
    const given = details ? { ...details, ...(words ? { text: words } : {}) } : words || undefined;
    const body = given === undefined ? { decision } : { decision, details: given };
    const answer = await send("POST", `/sessions/${session}/approvals/${approval.id}/decision`, body);
    if (!answer.applied) return `Already decided: ${verdict(answer.status, answer.decision)}`;
    return this.#buttons.isConnected ? `Sent: ${decision}.` : "";
  }

  /** Take in what is now known of the approval; a decided one loses its buttons (AQ-11). */
  update(approval) {
    const isOpen = approval.status === "waiting" || approval.status === "pending";
    if (isOpen || !this.#buttons.isConnected) return;
    if (this.#buttons.contains(document.activeElement)) this.element.focus({ preventScroll: true });
    this.#buttons.remove();
    const words = verdict(approval.status, approval.decision);
    this.element.dataset.status = approval.status;
    put(this.#verdict, `${approval.status === "granted" ? SIGNS.good : SIGNS.bad} ${words}`);
    tell(this.#outcome, "");
  }
}

/** "Granted by http:local, 14:02: words". */
export function verdict(status, decision) {
  const word = VERDICTS[status] ?? status;
  if (!decision) return word;
  const { details } = decision;
  const text = typeof details === "string" ? details : details?.text;
  return `${word} by ${visible(decision.by ?? "?")}, ${clock(decision.timestamp)}${text ? `: ${visible(text)}` : ""}`;
}

/** Ask for the new limit of a budget that is reached (BG-06). */
function raiseField(approval) {
  const { field, limit } = approval.budget;
  const id = `raise-${approval.conv}-${approval.id}`;
  const input = h("input", { type: "text", inputmode: "decimal", id, value: String(limit ?? "") });
  const read = () => {
    const value = input.value.trim();
    return { raise: { [field]: field === "cost" ? value : Number(value) } };
  };
  return { element: [h("label", { for: id }, `New limit of ${field}`), input], read };
}
