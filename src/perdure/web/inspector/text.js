// Text from outside, drawn as text: control characters made visible, long text folded, addresses
// opened only after they were shown in full (WB-25).

import { dialog, h } from "./dom.js";
import { laidOut } from "./json.js";
import { size } from "./words.js";

const FOLD_CHARACTERS = 2_000;
const FOLD_LINES = 24;
const PROSE_CHARACTERS = 20_000;

// Controls that reorder or hide what is read; line feed and tab stay.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu;
const FORMAT = /[\p{Cf}\u0000-\u001f\u007f-\u009f\u2028\u2029]/gu;

function escaped(character) {
  return [...Array(character.length).keys()]
    .map((at) => `\\u${character.charCodeAt(at).toString(16).padStart(4, "0")}`)
    .join("");
}

/** Make what cannot be seen, or turns the reading order, visible as `\\u202e`. */
export function visible(text) {
  return text.replace(HIDDEN, escaped);
}

/** The same for JSON text, where every format character is written as its escape: equal JSON. */
export function visibleJson(text) {
  return text.replace(FORMAT, escaped);
}

/** Draw prose; what is very long is folded, and says how much there is. */
export function prose(text, kept = {}) {
  if (text.length <= PROSE_CHARACTERS) return written(text);
  return folding(text, kept, (part) => (part === text ? h("div.prose.plain", { dir: "auto" }, visible(text)) : written(part)));
}

/** Draw fenced code in boxes, and web addresses as buttons that show where they lead. */
function written(text) {
  const box = h("div.prose", { dir: "auto" });
  const pieces = visible(text).split(/^```[^\n]*\n?/m);
  pieces.forEach((piece, at) => {
    if (at % 2) box.append(code(piece.replace(/\n$/, "")));
    else if (piece.trim()) box.append(h("p", null, linked(piece.replace(/^\n+|\s+$/g, ""))));
  });
  return box;
}

/** Draw code or output: kept as it stands, scrolling sideways inside its box. */
export function code(text, label = "Code") {
  return h("pre.code", { tabindex: "0", role: "region", "aria-label": label, dir: "ltr" }, text);
}

function linked(text) {
  const pieces = text.split(/(https?:\/\/[^\s<>"'`)\]}]+)/);
  return pieces.map((piece, at) => (at % 2 ? address(piece) : piece));
}

function address(target) {
  return h("button.link", { type: "button", onclick: () => askOpen(target) }, target);
}

function askOpen(target) {
  const box = dialog(
    "Open this address?",
    h("p", null, "It was written by a model or a tool. It leads to:"),
    h("pre.code.whole", { tabindex: "0", role: "region", "aria-label": "Full address" }, visibleJson(target)),
    h("div.row", null,
      h("a.button", { href: target, target: "_blank", rel: "noopener noreferrer", onclick: () => box.close() }, "Open in a new tab"),
      h("button", { type: "button", onclick: () => box.close() }, "Stay here")),
  );
}

/** Draw output, folded with its size when it is long; `open` keeps what a person unfolded. */
export function folded(text, label, kept = {}) {
  const shown = visible(text);
  if (!isLong(shown)) return code(shown, label);
  return folding(shown, kept, (part) => code(part, label));
}

function folding(text, kept, drawn) {
  const box = h("div.fold");
  const draw = () => {
    box.replaceChildren(
      drawn(kept.open ? text : head(text)),
      h("button.quiet", { type: "button", "aria-expanded": String(Boolean(kept.open)), onclick: toggle },
        kept.open ? "Fold" : `Show all ${size(new Blob([text]).size)}`),
    );
  };
  const toggle = () => {
    kept.open = !kept.open;
    draw();
    box.querySelector("button").focus();
  };
  draw();
  return box;
}

function isLong(text) {
  return text.length > FOLD_CHARACTERS || text.split("\n", FOLD_LINES + 2).length > FOLD_LINES;
}

function head(text) {
  const lines = text.slice(0, FOLD_CHARACTERS).split("\n", FOLD_LINES);
  return `${lines.join("\n")}\n…`;
}

/**
 * Draw arguments as their canonical text, in full and unchanged: only lines are broken, by boxes,
 * so that what is read, copied and compared is the stored text itself (AQ-05, WB-14).
 */
export function argumentsOf(argsText, label = "Arguments") {
  const shown = visibleJson(argsText);
  const lines = laidOut(shown).map(({ text, depth }) => {
    const line = h("span.member", null, text);
    line.style.setProperty("--depth", String(Math.min(depth, 12)));
    return line;
  });
  return h("pre.code.arguments", { tabindex: "0", role: "region", "aria-label": label, dir: "ltr" }, lines);
}
