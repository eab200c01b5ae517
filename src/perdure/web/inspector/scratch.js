// What a running task shows so far, as the base has it and as deltas change it (FM-09, D26).

const OUTPUT_CHARACTERS = 4_096;

export class Scratch {
  parts = []; // of a reply: {type, text, name?}
  output = ""; // of a tool: the end of what it wrote
  progress; // of a tool: its last checkpoint

  constructor(reduced = {}) {
    this.#take(reduced);
  }

  #take({ parts = [], output = "", progress } = {}) {
    this.parts = parts.map((part) => ({ ...part }));
    this.output = output;
    this.progress = progress;
  }

  /** Apply a delta. */
  apply(kind, payload) {
    if (kind === "reset") this.#take(payload ?? {});
    else if (kind === "frame") for (const frame of payload.f ?? []) this.#frame(frame);
    else if (kind === "output") this.output = (this.output + payload).slice(-OUTPUT_CHARACTERS);
    else if (kind === "progress") this.progress = payload;
  }

  #frame({ t, i, part, d }) {
    if (t === "start") this.parts[i] = { type: part.type, text: part.text ?? part.argsText ?? "", name: part.name };
    else if (t === "delta" && this.parts[i]) this.parts[i].text += d;
  }
}
