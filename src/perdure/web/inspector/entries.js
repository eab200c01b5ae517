// Drawing one entry: who said it, what was said, and each call together with its result (WB-27).

import { verdict } from "./approvals.js";
import { h } from "./dom.js";
import { written } from "./json.js";
import { roleOf } from "./conversation.js";
import { argumentsOf, code, folded, prose, visible } from "./text.js";
import { clock, moment, OUTCOMES, SIGNS, size } from "./words.js";

const CALLS_SHOWN = 24;

const SPEAKERS = {
  steer: "You, steering",
  followUp: "You, following up",
  nextRun: "You, for the next run",
  write: "Written in",
  spawn: "Parent",
};

/** What an entry says, apart from calls and results, as the search reads it. */
export function wordsOf(entry) {
  const payload = entry.payload ?? {};
  if (payload.text !== undefined) return payload.text;
  const messages = payload.messages ?? (payload.message ? [payload.message] : []);
  return messages.flatMap((message) => message.content ?? []).map((part) => part.text ?? part.name ?? "").join("\n");
}

/** Answer the calls of an assistant entry in their order. */
export function callsOf(entry) {
  if (entry.kind !== "assistant") return [];
  return (entry.payload?.message?.content ?? []).filter((part) => part.type === "toolCall");
}

export function speaker(entry) {
  const meta = entry.meta ?? {};
  if (entry.kind === "assistant") return meta.model ? meta.model.modelId : "Model";
  if (entry.kind === "summary") return "Summary";
  if (entry.kind === "tool_result" || entry.kind === "call_result") return "Result";
  if (entry.kind === "job_result") return "Job";
  if (meta.handoff) return "Handoff";
  if (meta.from) return meta.from;
  return SPEAKERS[meta.mode] ?? (entry.kind === "user" ? "You" : entry.kind);
}

/**
 * Draw an entry. `look` answers what surrounds it: `look.task(entry, callIndex)`,
 * `look.result(entry, callIndex)`, `look.scratch(task)`, `look.decision(taskId)`,
 * `look.removal(entry)`, `look.link(entry)`, and `look.kept(key)`: what a person unfolded.
 */
export function drawEntry(entry, look) {
  const removal = look.removal(entry);
  const isTurn = entry.kind === "user";
  const name = h(isTurn ? "h2.who" : "h3.who", null, speaker(entry));
  const article = h(`article.entry.is-${entry.kind}`, {
    id: `entry-${entry.id}`, tabindex: "-1", "data-entry": entry.id, "data-out": removal ? true : null,
  },
    h("header", null, name, removal ? h("p.removal", null, removal) : null, stamp(entry, look.link(entry))),
    body(entry, look));
  return article;
}

function stamp(entry, link) {
  const time = entry.meta?.timestamp;
  return h("span.stamp", null,
    time ? h("time", { datetime: new Date(time).toISOString(), title: moment(time) }, clock(time)) : null,
    h("a", { href: link, "aria-label": `Entry ${entry.id}` }, `#${entry.id}`));
}

function body(entry, look) {
  const payload = entry.payload ?? {};
  if (entry.kind === "assistant") return assistant(entry, payload.message ?? { content: [] }, look);
  if (entry.kind === "summary") return summary(entry, payload, look);
  if (payload.messages) return payload.messages.flatMap((message) => parts(message.content, entry, look));
  if (payload.message) return resultBody(payload.message, look.kept(entry.id));
  if (entry.kind === "job_result") return [h("p.outcome", null, exitWords(payload.exit)), ...parts(payload.content ?? [], entry, look)];
  return folded(written(payload), "Payload", look.kept(entry.id));
}

function exitWords(exit) {
  if (!exit) return "nobody saw it end";
  if (exit.code !== undefined) return `ended with code ${exit.code}`;
  return exit.signal !== undefined ? `ended by ${exit.signal}` : `did not run: ${exit.error}`;
}

function summary(entry, payload, look) {
  const kept = look.kept(entry.id);
  const box = h("details", { open: kept.open }, h("summary", null, `Stands for everything up to #${entry.through ?? "?"}`), prose(payload.text ?? ""));
  box.addEventListener("toggle", () => (kept.open = box.open));
  return box;
}

function parts(content, entry, look) {
  return content.map((part, at) => drawPart(part, look.kept(`${entry.id}/${at}`)));
}

/** Draw one part that is no call. */
export function drawPart(part, kept) {
  if (part.type === "text") return prose(part.text, kept);
  if (part.type === "thinking") return thinking(part, kept);
  if (part.type === "image") return image(part);
  return h("p.note", null, "A part this release cannot show.");
}

function thinking(part, kept) {
  const words = part.redacted ? "Thinking, withheld by the provider" : `Thinking, ${size(part.text.length)}`;
  const box = h("details.thinking", { open: kept.open }, h("summary", null, words), prose(part.text));
  box.addEventListener("toggle", () => (kept.open = box.open));
  return box;
}

const IMAGE_TYPES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

function image(part) {
  const isShown = IMAGE_TYPES.has(part.mime) && /^[A-Za-z0-9+/]+=*$/.test(part.data ?? "");
  if (!isShown) return h("p.note", null, `Image, ${visible(part.mime ?? "of unknown type")}`);
  const shown = h("img.image", { alt: `Image, ${part.mime}, ${size(Math.floor((part.data.length * 3) / 4))}` });
  shown.src = `data:${part.mime};base64,${part.data}`; // the one image source there is (WB-25)
  return shown;
}

function assistant(entry, message, look) {
  const drawn = [];
  let callIndex = 0;
  const calls = callsOf(entry).length;
  message.content.forEach((part, at) => {
    if (part.type !== "toolCall") drawn.push(drawPart(part, look.kept(`${entry.id}/${at}`)));
    else {
      if (callIndex < CALLS_SHOWN || look.kept(entry.id).all) drawn.push(drawCall(entry, part, callIndex, look));
      callIndex += 1;
    }
  });
  if (calls > CALLS_SHOWN && !look.kept(entry.id).all) drawn.push(h("button.quiet", { type: "button", "data-all": entry.id }, `Show all ${calls} calls`));
  const ending = endingOf(message);
  if (ending) drawn.push(h("p.ending", null, ending));
  if (!drawn.length) drawn.push(h("p.note", null, "An empty reply."));
  return drawn;
}

function endingOf(message) {
  if (message.error) return `${SIGNS.bad} Failed: ${message.error.code}. ${message.error.message}`;
  if (message.stop === "aborted") return `${SIGNS.bad} Aborted; what had come is kept.`;
  if (message.stop === "length") return "Stopped at the length limit.";
  return null;
}

// ----------------------------------------------------------------------- calls

/** Say how far a call is, or what became of it: `[sign, words, mood]`. */
export function callState(task, result) {
  const outcome = result?.meta?.outcome ?? task?.state?.outcome;
  if (outcome) {
    const isError = result?.meta?.isError ?? task?.state?.isError;
    if (outcome === "finished" && isError) return [SIGNS.bad, "finished with an error", "bad"];
    return [outcome === "finished" ? SIGNS.good : SIGNS.bad, OUTCOMES[outcome] ?? outcome, outcome === "finished" ? "good" : "bad"];
  }
  if (result) return [SIGNS.good, "finished", "good"];
  if (!task) return [SIGNS.off, "not started", "off"];
  const role = roleOf(task);
  if (task.abort) return [SIGNS.working, "being cancelled", "wait"];
  if (role === "waiting") return [SIGNS.waiting, "waits for a decision", "wait"];
  if (role === "working") return [SIGNS.working, "running", "busy"];
  return [SIGNS.idle, "about to start", "off"];
}

function drawCall(entry, part, callIndex, look) {
  const task = look.task(entry, callIndex);
  const result = look.result(entry, callIndex);
  const [sign, words, mood] = callState(task, result);
  const kept = look.kept(`call/${entry.id}/${callIndex}`);
  const text = part.argsText ?? written(part.args ?? {});
  const box = h("details.call", { open: kept.open, "data-call": `${entry.id}/${callIndex}`, "data-mood": mood },
    h("summary", null,
      h("span.tool", null, part.name),
      h("span.brief", { dir: "ltr" }, brief(text)),
      h("span.state", { "data-mood": mood }, h("span.sign", { "aria-hidden": "true" }, sign), ` ${words}`)),
    h("h4", null, "Arguments"), argumentsOf(text),
    decided(look.decision(result?.by ?? task?.id)),
    result ? [h("h4", null, "Result"), resultBody(result.payload?.message ?? { content: [] }, kept)] : null,
    result ? h("p.note", null, `Entry #${result.id}`) : running(task, look));
  box.addEventListener("toggle", () => (kept.open = box.open));
  return box;
}

/** Who decided about a call, for ever (AQ-06). */
function decided(approval) {
  return approval?.decision ? h("p.verdict", null, verdict(approval.status, approval.decision)) : null;
}

/** What a call has written so far; it stands in the page before there is any. */
function running(task, look) {
  const box = code("", "Output so far");
  box.classList.add("running");
  box.textContent = visible(outputOf(look.scratch(task)));
  return box;
}

export function outputOf(scratch) {
  if (!scratch) return "";
  return scratch.output || (scratch.progress === undefined ? "" : written(scratch.progress));
}

function brief(text) {
  const inner = text.replace(/^\{|\}$/g, "");
  return inner.length > 120 ? `${inner.slice(0, 120)}…` : inner;
}

/** Draw what a tool answered. */
export function resultBody(message, kept) {
  const drawn = (message.content ?? []).map((part, at) =>
    part.type === "text" ? folded(part.text, "Output", (kept[at] ??= {})) : drawPart(part, (kept[at] ??= {})));
  if (message.cut) drawn.push(h("p.note", null, `Only the ${message.cut.kept} is kept, of ${size(message.cut.bytes)}.`));
  if (message.details !== undefined) drawn.push(h("h4", null, "Details"), code(written(message.details), "Details"));
  return drawn;
}
