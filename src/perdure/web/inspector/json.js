// JSON without rounding. A browser reads 9007199254740993 as ...992 (K33), so a number whose text
// does not come back from a double keeps its text.

/** A number kept by its digits. */
export class Digits {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.text) : Number(this.text);
  }
}

/** Parse JSON; a number that a double cannot hold as it is written becomes `Digits`. */
export function parse(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || context?.source === undefined) return value;
    return String(value) === context.source ? value : new Digits(context.source);
  });
}

/** Write a value as JSON for reading, two spaces a level, every digit kept. */
export function written(value, indent = "") {
  if (value instanceof Digits) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const isList = Array.isArray(value);
  const inner = indent + "  ";
  const parts = isList
    ? value.map((item) => written(item, inner))
    : Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${written(item, inner)}`);
  if (!parts.length) return isList ? "[]" : "{}";
  const [open, close] = isList ? "[]" : "{}";
  return `${open}\n${inner}${parts.join(`,\n${inner}`)}\n${indent}${close}`;
}

/**
 * Cut a JSON text into lines for the eye: the pieces joined are the text again, byte for byte.
 * Each piece is `{text, depth}`; a member of an object or list begins a piece, and so does what
 * follows an escaped line break inside a string.
 */
export function laidOut(text, piecesMax = 400) {
  const pieces = [];
  let start = 0;
  let depth = 0;
  let startDepth = 0;
  let inString = false;
  const cut = (at, nextDepth) => {
    if (at > start) pieces.push({ text: text.slice(start, at), depth: startDepth });
    start = at;
    startDepth = nextDepth;
  };
  for (let at = 0; at < text.length && pieces.length < piecesMax; at += 1) {
    const char = text[at];
    if (inString) {
      if (char === "\\") {
        at += 1;
        if (text[at] === "n") cut(at + 1, depth + 1);
      } else if (char === '"') inString = false;
    } else if (char === '"') inString = true;
    else if (char === "{" || char === "[") {
      depth += 1;
      const next = text[at + 1];
      if (next !== "}" && next !== "]") cut(at + 1, depth);
    } else if (char === "}" || char === "]") {
      depth -= 1;
      const before = text[at - 1];
      if (before !== "{" && before !== "[") cut(at, depth);
    } else if (char === ",") cut(at + 1, depth);
  }
  cut(text.length, depth);
  return pieces;
}
