// Time travel: any commit of the session can be chosen, and the page shows that boundary (WB-31).

import { dialog, fill, h, put } from "./dom.js";
import { get, reason } from "./http.js";
import { moment } from "./words.js";

const PAGE = 1_000;
const SETTLE_MS = 150; // a moving slider asks for a boundary once it rests

export class Travel {
  element = h("section.travel", { "aria-label": "History", hidden: true });
  #path;
  #pick;
  #at = null;
  #commits = []; // [lastSeq, timestamp], in order
  #banner = h("p.banner", { role: "status" });
  #slider;
  #timer = 0;
  #focused = () => null;

  /** `pick(at)` goes to a boundary, or back to now for null; `focused()` names the entry in focus. */
  constructor(path, pick, focused) {
    this.#path = path;
    this.#pick = pick;
    this.#focused = focused;
    this.#slider = h("input", { type: "range", min: "1", step: "1", "aria-label": "Commit" });
    this.#slider.addEventListener("input", () => this.#slid());
    this.element.append(this.#banner, h("div.row", null,
      h("button.quiet", { type: "button", onclick: () => this.step(-1) }, "Earlier"),
      this.#slider,
      h("button.quiet", { type: "button", onclick: () => this.step(1) }, "Later"),
      h("button", { type: "button", onclick: () => this.#pick(null) }, "Back to now")));
  }

  /** Show the boundary that the address names. */
  async show(at) {
    this.#at = at;
    this.element.hidden = at === null;
    if (at === null) return;
    await this.#read();
    const index = this.#indexOf(at);
    this.#slider.max = String(this.#commits.length);
    this.#slider.value = String(index + 1);
    this.#words(index);
  }

  #words(index) {
    const [seq, time] = this.#commits[index] ?? [this.#at, null];
    const words = `As it was at commit ${index + 1} of ${this.#commits.length}${time ? `, ${moment(time)}` : ""} (seq ${seq}). Nothing can be changed here.`;
    put(this.#banner, words);
    this.#slider.setAttribute("aria-valuetext", words);
  }

  /** Read the boundaries that are not known yet. */
  async #read() {
    for (;;) {
      const after = this.#commits.at(-1)?.[0] ?? null;
      const { commits } = await get(`${this.#path}/commits`, { after, limit: PAGE, writes: false });
      this.#commits.push(...commits.map(({ lastSeq, timestamp }) => [lastSeq, timestamp]));
      if (commits.length < PAGE) return;
      put(this.#banner, `Reading the history: ${this.#commits.length} commits.`);
    }
  }

  #indexOf(seq) {
    let [low, high] = [0, this.#commits.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#commits[middle][0] < seq) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #slid() {
    const index = Number(this.#slider.value) - 1;
    this.#words(index);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#pick(this.#commits[index][0]), SETTLE_MS);
  }

  step(by) {
    const index = this.#at === null ? this.#commits.length - 1 : this.#indexOf(this.#at);
    const next = this.#commits[Math.max(0, Math.min(this.#commits.length - 1, index + by))];
    if (next) this.#pick(next[0]);
  }

  /** Ask which commit or entry to go to: by number, by the entry in focus, or by a time. */
  ask(showEntry) {
    const field = h("input", { type: "text", id: "goto", value: this.#focused() ?? "", autocomplete: "off" });
    const outcome = h("p.outcome", { role: "alert" });
    const go = async () => {
      try {
        await this.#read();
        const seq = this.#meant(field.value.trim());
        box.close();
        this.#pick(seq);
      } catch (error) {
        put(outcome, reason(error));
      }
    };
    const form = h("form", null,
      h("label", { for: "goto" }, "A commit, an entry, or a time such as 2026-11-29 14:02"), field, outcome,
      h("div.row", null, h("button.primary", { type: "submit" }, "Show it as it was then"),
        h("button", { type: "button", onclick: () => { box.close(); showEntry(Number(field.value)); } }, "Go to the entry"),
        h("button", { type: "button", onclick: () => box.close() }, "Close")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      go();
    });
    const box = dialog("Go to", form);
    field.select();
  }

  #meant(words) {
    if (!this.#commits.length) throw new Error("There is no commit yet");
    if (/^#?\d+$/.test(words)) {
      const seq = Number(words.replace("#", ""));
      if (seq > this.#commits.at(-1)[0]) throw new Error(`The newest commit ends at ${this.#commits.at(-1)[0]}`);
      return this.#commits[this.#indexOf(seq)][0];
    }
    const time = Date.parse(words);
    if (Number.isNaN(time)) throw new Error(`${words || "Nothing"} is no number and no time`);
    const found = this.#commits.findLast(([, at]) => at <= time);
    if (!found) throw new Error("There was no commit yet at that time");
    return found[0];
  }
}
