// Figures and states in words.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** "3 s", "4 min", "2 h", "5 d": one unit, rounded down. */
export function span(ms) {
  if (ms < 0) return "0 s";
  if (ms < 1_000) return `${Math.floor(ms)} ms`;
  if (ms < MINUTE) return `${Math.floor(ms / 1_000)} s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)} h`;
  return `${Math.floor(ms / DAY)} d`;
}

/** "just now" or "4 min ago". */
export function age(ms, now = Date.now()) {
  return now - ms < 5_000 ? "just now" : `${span(now - ms)} ago`;
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** The hour of the day, or day and hour when it is not today. */
export function clock(ms, now = Date.now()) {
  const isToday = new Date(ms).toDateString() === new Date(now).toDateString();
  return isToday ? TIME.format(ms) : FULL.format(ms);
}

/** Day and time to the second. */
export function moment(ms) {
  return FULL.format(ms);
}

/** "812 B", "12.4 KB", "1.0 MB". */
export function size(bytes) {
  if (bytes < 1_000) return `${bytes} B`;
  if (bytes < 1_000_000) return `${(bytes / 1_000).toFixed(1)} KB`;
  return `${(bytes / 1_000_000).toFixed(1)} MB`;
}

/** A whole number with thin groups: "12 345". */
export function count(number) {
  return String(number).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** "1 task", "2 tasks". */
export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

/** Money as its decimal text and currency; nothing is rounded here. */
export function money(costs) {
  const sums = Object.entries(costs ?? {}).map(([currency, amount]) => `${trimmed(amount)} ${currency}`);
  return sums.length ? sums.join(" + ") : null;
}

function trimmed(amount) {
  const text = String(amount);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

/** What became of a call (FM-07), or how far it is. */
export const OUTCOMES = {
  finished: "finished",
  denied: "denied",
  notStarted: "not started",
  interrupted: "interrupted",
};

/** The sign before a state's word: a shape, so that colour is never the only sign (WB-33). */
export const SIGNS = {
  idle: "○",
  working: "◐",
  waiting: "◇",
  good: "●",
  bad: "✕",
  off: "–",
};
