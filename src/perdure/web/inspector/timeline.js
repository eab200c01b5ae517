// The timeline: when each task was planned, ran, waited and ended; and when no process had the
// session open, so that a kill can be seen (WB-28).

import { fill, h, put } from "./dom.js";
import { get, reason } from "./http.js";
import { roleOf } from "./conversation.js";
import { taskName } from "./side.js";
import { clock, many, moment, span } from "./words.js";

const COMMITS = 1_000;
const ROWS = 80;
const AGAIN_MS = 500;

export function timelineView(view) {
  const outcome = h("p.outcome", { role: "alert" });
  const content = h("div.content");
  const element = h("section.page.wide", { "aria-label": "Timeline" },
    h("header.viewhead", null, h("h2", null, "Timeline"), h("a.twin", { href: `/v1${view.path}/commits`, target: "_blank", rel: "noopener" }, "As JSON")), outcome, content);
  let timer = 0;
  let isOpen = true;
  const draw = async () => {
    try {
      const [{ commits }, { openings }] = await Promise.all([
        get(`${view.path}/commits`, { newest: true, limit: COMMITS, before: view.at === null ? null : view.at + 1 }),
        get(`${view.path}/openings`),
      ]);
      if (isOpen) fill(content, drawn(bars(commits), gaps(openings), commits));
      put(outcome, "");
    } catch (error) {
      put(outcome, reason(error));
    }
  };
  const apply = ({ what }) => {
    if (what !== "commit") return;
    clearTimeout(timer);
    timer = setTimeout(draw, AGAIN_MS);
  };
  draw();
  return { element, apply, close: () => { isOpen = false; clearTimeout(timer); } };
}

/** Follow each task through the commits: `{task, phases: [{role, from, to}]}`. */
export function bars(commits) {
  const tasks = new Map();
  for (const { timestamp, writes } of commits) {
    for (const { seq, change } of writes) {
      if (change.k === "ins_task") tasks.set(seq, { task: { ...change, id: seq }, phases: [{ role: roleOf(change), from: timestamp, to: null }] });
      else if (change.k === "set" || change.k === "settle") follow(tasks.get(change.id), change, timestamp);
    }
  }
  return [...tasks.values()];
}

function follow(bar, change, timestamp) {
  if (!bar) return;
  bar.task = { ...bar.task, status: change.status ?? bar.task.status, state: { ...bar.task.state, ...change.state } };
  bar.phases.at(-1).to = timestamp;
  if (change.k === "set") bar.phases.push({ role: roleOf(bar.task), from: timestamp, to: null });
  else bar.ended = timestamp;
}

/** Times in which no process had the session open. */
export function gaps(openings) {
  const inOrder = [...openings].sort((a, b) => a.openedMs - b.openedMs);
  return inOrder.slice(1).flatMap((opening, at) => {
    const from = inOrder[at].closedMs;
    return [{ from: from ?? opening.openedMs, to: opening.openedMs, isKill: from === null }];
  });
}

const ROLE_WORDS = { planned: "planned", working: "ran", waiting: "waited" };

function drawn(all, closed, commits) {
  if (!all.length) return h("p.note", null, "No task in the last commits.");
  const shown = all.slice(-ROWS);
  const start = Math.min(...shown.map((bar) => bar.phases[0].from));
  const end = Math.max(Date.now() - start > 0 && shown.some((bar) => !bar.ended) ? Date.now() : 0, commits.at(-1).timestamp, start + 1);
  const place = (from, to) => ({ left: (from - start) / (end - start), width: Math.max(0.002, (to - from) / (end - start)) });
  const breaks = closed.filter((gap) => gap.to >= start && gap.from <= end);
  return [
    h("p.note", null, `${clock(start)} to ${clock(end)}, ${span(end - start)}; ${many(shown.length, "task")}${all.length > shown.length ? `, the last of ${all.length}` : ""}`),
    breaks.length ? h("ul.gaps", null, breaks.map((gap) => h("li", null, gap.isKill ? `The process that had it open before ${moment(gap.to)} was killed.` : `No process had it open from ${moment(gap.from)} to ${moment(gap.to)}.`))) : null,
    h("table.timeline", null,
      h("thead", null, h("tr", null, ["Task", "When", "In words"].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", null, shown.map((bar) => row(bar, breaks, place, end)))),
  ];
}

function row({ task, phases }, breaks, place, end) {
  const track = h("div.track", { "aria-hidden": "true" });
  const mark = (spec, from, to) => {
    const { left, width } = place(from, to);
    const piece = h(spec);
    piece.style.setProperty("--left", String(left));
    piece.style.setProperty("--width", String(width));
    track.append(piece);
  };
  for (const gap of breaks) mark("span.gap", Math.max(gap.from, end - (end - gap.from)), gap.to);
  for (const phase of phases) mark(`span.phase.is-${phase.role}`, phase.from, phase.to ?? end);
  const words = phases.map((phase) => `${ROLE_WORDS[phase.role] ?? phase.role} ${span((phase.to ?? end) - phase.from)}`).join(", ");
  return h("tr", null, h("th", { scope: "row" }, `${taskName(task)} #${task.id}`), h("td", null, track), h("td.words", null, `${words}; ${task.status.replaceAll("_", " ")}`));
}
