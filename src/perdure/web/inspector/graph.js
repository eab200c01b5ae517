// The task graph: who waits for whom, left to right; the table beside it holds the same facts.

import { roleOf } from "./conversation.js";
import { taskName } from "./side.js";
import { SIGNS } from "./words.js";

const COLUMNS = 9; // columns that stay readable at the page's width
const WIDTH = 118;
const HEIGHT = 46;
const GAP = 26;
const NAME_CHARACTERS = 13;
const SIGN_OF = { working: SIGNS.working, waiting: SIGNS.waiting, planned: SIGNS.idle, ended: SIGNS.good };

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** Put tasks in columns: a task stands right of all it waits for, and of what started it. */
export function columnsOf(tasks) {
  const byId = new Map(tasks.map((task) => [task.id, task]));
  const depth = new Map();
  const depthOf = (task) => {
    if (!depth.has(task.id)) {
      depth.set(task.id, 0); // also what ends a circle, should there be one
      const before = edgesOf(task, byId).map(([from]) => depthOf(byId.get(from)) + 1);
      depth.set(task.id, Math.max(0, ...before));
    }
    return depth.get(task.id);
  };
  const columns = [];
  for (const task of [...tasks].sort((a, b) => a.id - b.id)) (columns[depthOf(task)] ??= []).push(task);
  return columns.slice(-COLUMNS);
}

/** Who comes before a task: what it waits for, and what started it unless that waits for it. */
function edgesOf(task, byId) {
  const awaited = (task.after ?? []).map((id) => [id, "after"]);
  const starter = byId.get(task.for);
  const isAwaited = starter?.after?.includes(task.id);
  return [...awaited, ...(starter && !isAwaited ? [[task.for, "for"]] : [])].filter(([id]) => byId.has(id));
}

/** Draw the newest part of the graph. */
export function drawGraph(tasks) {
  const columns = columnsOf(tasks);
  const places = new Map();
  columns.forEach((column, x) => column.forEach((task, y) => places.set(task.id, [x * (WIDTH + GAP), y * (HEIGHT + GAP / 2)])));
  const tall = Math.max(1, ...columns.map((column) => column.length)) * (HEIGHT + GAP / 2);
  const wide = columns.length * (WIDTH + GAP) - GAP;
  const byId = new Map(tasks.map((task) => [task.id, task]));
  const shown = tasks.filter((task) => places.has(task.id));
  const edges = shown.flatMap((task) => edgesOf(task, byId).map(([from, kind]) => [from, task.id, kind]));
  const lines = edges.filter(([from]) => places.has(from)).map(([from, to, kind]) => line(places.get(from), places.get(to), kind));
  const boxes = [...places].map(([id, [x, y]]) => box(byId.get(id), x, y));
  return svg("svg", { class: "graph", width: wide + 4, viewBox: `-2 -2 ${wide + 4} ${tall + 4}`, role: "img", "aria-label": "Task graph; the table below holds the same facts" }, ...lines, ...boxes);
}

function line([x1, y1], [x2, y2], kind) {
  const [from, to] = [x1 + WIDTH, x2];
  const [start, end] = [y1 + HEIGHT / 2, y2 + HEIGHT / 2];
  const middle = (from + to) / 2;
  return svg("path", { class: `edge is-${kind}`, d: `M${from} ${start} C${middle} ${start} ${middle} ${end} ${to} ${end}` });
}

function box(task, x, y) {
  const role = roleOf(task);
  const name = taskName(task);
  const short = name.length > NAME_CHARACTERS ? `${name.slice(0, NAME_CHARACTERS - 1)}…` : name;
  return svg("g", { class: `node is-${role}` },
    svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6 }),
    svg("text", { x: x + 10, y: y + 19, class: "name" }, `${SIGN_OF[role]} ${short}`),
    svg("text", { x: x + 10, y: y + 36 }, `#${task.id} ${task.status.replaceAll("_", " ")}`));
}
