// The event stream of one conversation, continued after every loss (WB-15, WB-16, WB-35).

import { reads } from "./http.js";
import { parse } from "./json.js";

const FIRST_RETRY_MS = 1_000;
const LAST_RETRY_MS = 30_000;
const SILENCE_MS = 40_000; // the server says something at least each 15 s

/**
 * Follow a stream. `onevent(type, data)` gets each event; `onstate({live, since, error})` says
 * when the connection was lost and when it is back. The last commit's id is sent on reconnecting,
 * so no commit is missed and none comes twice.
 */
export class EventStream {
  #path;
  #onevent;
  #onstate;
  #lastId = null;
  #wait = FIRST_RETRY_MS;
  #stop = null;
  #timer = 0;
  #isOpen = true;

  constructor(path, { onevent, onstate }) {
    this.#path = path;
    this.#onevent = onevent;
    this.#onstate = onstate;
    this.#follow();
  }

  close() {
    this.#isOpen = false;
    clearTimeout(this.#timer);
    this.#stop?.abort();
  }

  /** Try at once, for instance when a person asks. */
  again() {
    if (!this.#isOpen) return;
    clearTimeout(this.#timer);
    this.#wait = FIRST_RETRY_MS;
    this.#follow();
  }

  async #follow() {
    this.#stop?.abort();
    const stop = new AbortController();
    this.#stop = stop;
    let error = "the connection ended";
    let isFinal = false;
    try {
      const headers = this.#lastId === null ? {} : { "Last-Event-ID": this.#lastId };
      const answer = await fetch(reads + this.#path, { headers, cache: "no-store", signal: stop.signal });
      if (answer.ok) await this.#read(answer.body.getReader(), stop);
      else {
        isFinal = [401, 403, 404, 410].includes(answer.status);
        error = (parse(await answer.text()).error ?? {}).message ?? `the server answered ${answer.status}`;
      }
    } catch (failure) {
      if (failure.name !== "AbortError") error = "the server cannot be reached";
    }
    if (this.#stop === stop) this.#lost(error, isFinal);
  }

  #lost(error, isFinal) {
    if (!this.#isOpen) return;
    this.#onstate({ live: false, since: Date.now(), error, isFinal, again: this.#wait });
    if (isFinal) return;
    this.#timer = setTimeout(() => this.#follow(), this.#wait);
    this.#wait = Math.min(2 * this.#wait, LAST_RETRY_MS);
  }

  async #read(reader, stop) {
    const decoder = new TextDecoder();
    let rest = "";
    let isFirst = true;
    let watchdog = 0;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => reader.cancel(), SILENCE_MS);
    };
    try {
      for (;;) {
        alive();
        const { done, value } = await reader.read();
        if (done || stop.signal.aborted) return;
        if (isFirst) {
          isFirst = false;
          this.#wait = FIRST_RETRY_MS;
          this.#onstate({ live: true });
        }
        const blocks = (rest + decoder.decode(value, { stream: true })).replaceAll("\r\n", "\n").split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) this.#take(block);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  #take(block) {
    let type = "message";
    let id = null;
    const data = [];
    for (const line of block.split("\n")) {
      const at = line.indexOf(":");
      if (at < 1) continue;
      const [field, value] = [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
      if (field === "event") type = value;
      else if (field === "data") data.push(value);
      else if (field === "id") id = value;
    }
    if (!data.length) return;
    this.#onevent(type, parse(data.join("\n")));
    if (id !== null) this.#lastId = id;
  }
}
