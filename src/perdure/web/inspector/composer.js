// Saying something, and stopping what runs (WB-29, WB-35).

import { command, once, tell } from "./actions.js";
import { h, put } from "./dom.js";
import { reason, Refused, requestId, send, Unreachable } from "./http.js";
import { visible } from "./text.js";
import { many } from "./words.js";

const MODES = {
  accept: ["Send", "run", "answered at once when idle, else after what runs"],
  steer: ["Steer", "steer", "read before the next request of what runs"],
  followUp: ["Follow up", "follow-up", "read when what runs is finished"],
  nextRun: ["For the next run", null, "kept until something else is sent"],
  write: ["Write in", null, "placed without asking the model"],
};

const QUEUE_WORDS = { steer: "steering", followUp: "follow-up", nextRun: "for the next run", write: "to be written in" };

export class Composer {
  element;
  #view;
  #text;
  #mode;
  #outcome = h("p.outcome", { role: "alert" });
  #equal = h("span.equal");
  #send;
  #abort;
  #draft;
  #retry = 0;

  constructor(view) {
    this.#view = view;
    this.#draft = restore(view) ?? { text: "", mode: "accept", id: null };
    this.#text = h("textarea", { id: "say", rows: "1", "aria-describedby": "mode-words", placeholder: "Say something" });
    this.#text.value = this.#draft.text;
    this.#mode = h("select", { id: "mode", "aria-label": "How it is sent" },
      Object.entries(MODES).map(([mode, [label]]) => h("option", { value: mode, selected: mode === this.#draft.mode }, label)));
    this.#send = h("button.primary", { type: "submit" }, "Send");
    this.#abort = h("button.stop", { type: "button" }, "Abort");
    this.#abort.addEventListener("click", () => once(this.#abort, this.#outcome, () => this.#stop()));
    this.element = h("form.composer", { "aria-label": "Say something" },
      h("label.unseen", { for: "say" }, "Your words"), this.#text,
      h("div.row", null, this.#mode, h("span.hint", { id: "mode-words" }), this.#abort, this.#send),
      this.#outcome, h("details.equals", null, h("summary", null, "As a command"), this.#equal));
    this.#listen();
    this.update();
  }

  #listen() {
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#text.addEventListener("input", () => this.#changed());
    this.#mode.addEventListener("change", () => this.#changed());
    this.#text.addEventListener("keydown", (event) => {
      const sends = event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(pointer: fine)").matches;
      if (!sends) return;
      event.preventDefault();
      this.#submit();
    });
  }

  /** Other words or another mode are another request. */
  #changed() {
    clearTimeout(this.#retry);
    this.#draft = { text: this.#text.value, mode: this.#mode.value, id: null };
    keep(this.#view, this.#draft);
    tell(this.#outcome, "");
    this.update();
  }

  update() {
    const [label, verb, words] = MODES[this.#mode.value];
    put(this.#send, label);
    put(this.element.querySelector("#mode-words"), words);
    this.#abort.hidden = !this.#view.tasks.size;
    const text = this.#text.value.trim() || "…";
    const line = verb ? command(verb, "--session", this.#view.name, text) : h("span", null, "No command does this.");
    const abort = this.#view.tasks.size ? command("abort", "--session", this.#view.name) : null;
    this.#equal.replaceChildren(...[line, abort].filter(Boolean));
  }

  #submit() {
    if (!this.#text.value.trim()) {
      this.#text.focus();
      return;
    }
    clearTimeout(this.#retry);
    once(this.#send, this.#outcome, () => this.#give());
  }

  async #give() {
    this.#draft.id ??= requestId();
    keep(this.#view, this.#draft);
    const { text, mode, id } = this.#draft;
    const body = { mode, content: text, request_id: id };
    try {
      const answer = await send("POST", `${this.#view.path}/inputs?conversation=${this.#view.conv}`, body);
      await this.#arrived(answer.inputId);
      this.#done(id);
      return "";
    } catch (error) {
      if (error instanceof Unreachable || (error instanceof Refused && error.retry === "same_id")) return this.#later(error, id);
      this.#draft.id = null;
      throw error;
    }
  }

  /** Wait for the commit on the stream, at most while the view is live. */
  async #arrived(seq) {
    if (this.#view.asOf >= seq || !this.#view.connection.live) return;
    await new Promise((resolve) => {
      const look = () => {
        if (this.#view.asOf < seq && this.#view.connection.live) return;
        this.#view.removeEventListener("change", look);
        resolve();
      };
      this.#view.addEventListener("change", look);
    });
  }

  #done(id) {
    if (this.#draft.id !== id) return;
    this.#text.value = "";
    this.#draft = { text: "", mode: this.#mode.value, id: null };
    keep(this.#view, this.#draft);
    this.update();
  }

  #later(error, id) {
    this.#retry = setTimeout(() => this.#draft.id === id && this.#submit(), 3_000);
    return `${reason(error)} Not sent yet; your words are kept and are sent again under the same request id.`;
  }

  async #stop() {
    const answer = await send("POST", `${this.#view.path}/abort?conversation=${this.#view.conv}`, {});
    const drained = answer.drained ?? [];
    return drained.length ? `${many(drained.length, "queued input")} withdrawn.` : "";
  }

  focus() {
    this.#text.focus();
  }

  close() {
    clearTimeout(this.#retry);
  }
}

function keyOf(view) {
  return `draft/${view.session}/${view.conv}`;
}

function restore(view) {
  try {
    return JSON.parse(sessionStorage.getItem(keyOf(view)));
  } catch {
    return null;
  }
}

function keep(view, draft) {
  if (draft.text) sessionStorage.setItem(keyOf(view), JSON.stringify(draft));
  else sessionStorage.removeItem(keyOf(view));
}

/** Draw what waits in the queue, in its order, each with the button that takes it back. */
export class Queue {
  element = h("section.queue", { "aria-label": "Queue", hidden: true });
  #view;
  #outcome = h("p.outcome", { role: "alert" });

  constructor(view) {
    this.#view = view;
    this.update();
  }

  update() {
    const items = this.#view.state?.inbox ?? [];
    this.element.hidden = !items.length;
    const key = items.map((item) => `${item.kind}${item.id}`).join();
    if (this.element.dataset.items === key) return;
    this.element.dataset.items = key;
    this.element.replaceChildren(h("h2", null, "Queued"), h("ol", null, items.map((item) => this.#item(item))), this.#outcome);
  }

  #item({ id, kind, entry }) {
    const words = (this.#view.inputs.get(entry ?? id) ?? []).flatMap((message) => message.content).map((part) => part.text ?? "an image").join(" ");
    const cancel = h("button.quiet", { type: "button", "aria-label": `Take back input ${id}` }, "Take back");
    cancel.addEventListener("click", () => once(cancel, this.#outcome, () => this.#cancel(id)));
    return h("li", { "data-input": id }, h("span.kind", null, QUEUE_WORDS[kind] ?? kind), h("span.words", { dir: "auto" }, visible(words)), this.#view.at === null ? cancel : null);
  }

  async #cancel(id) {
    const { result } = await send("POST", `${this.#view.path}/queue/${id}/cancel`);
    return result === "cancelled" ? "Taken back." : "Too late: it was already taken up.";
  }
}
