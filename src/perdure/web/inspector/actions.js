// One action is one request under one request id; nothing on the page changes before its commit
// arrives on the stream (WB-29).

import { h, put, say } from "./dom.js";
import { reason } from "./http.js";

/** Quote a word for a shell. */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`;
}

/** Show the equal command, ready to be copied. */
export function command(...words) {
  const text = ["perdure", ...words].map(quoted).join(" ");
  return h("span.command", null, h("code", null, text), h("button.quiet", { type: "button", "aria-label": "Copy the command", onclick: () => copy(text) }, "Copy"));
}

/** Put a text on the clipboard, exactly. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser did not allow copying.");
  }
}

/**
 * Make a button that acts once at a time: while its request is under way a second click does
 * nothing, and a refusal is said in words in `outcome`.
 */
export function actor(spec, label, outcome, act) {
  const button = h(`button${spec}`, { type: "button" }, label);
  button.addEventListener("click", () => once(button, outcome, act));
  return button;
}

/** Run an action unless it is running; say why when it is refused. Answers whether it was done. */
export async function once(button, outcome, act) {
  if (button.dataset.busy) return false;
  button.dataset.busy = "true";
  button.setAttribute("aria-busy", "true");
  put(outcome, "");
  try {
    const words = await act();
    if (typeof words === "string") tell(outcome, words);
    return true;
  } catch (error) {
    tell(outcome, reason(error), "bad");
    return false;
  } finally {
    delete button.dataset.busy;
    button.removeAttribute("aria-busy");
  }
}

/** Write an action's outcome beside it; the place itself is an alert. */
export function tell(outcome, words, mood = "") {
  put(outcome, words);
  outcome.dataset.mood = mood;
}
