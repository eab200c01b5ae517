// Requests to the one API, under /v1 of this very server (WB-23).

import { parse } from "./json.js";

/** The server said no: `code`, `message` and `retry` as every surface says them (WB-06). */
export class Refused extends Error {
  constructor(status, { code, message, details, retry }) {
    super(message);
    Object.assign(this, { status, code, details, retry });
  }
}

/** Nobody answered. */
export class Unreachable extends Error {}

export const reads = "/v1";

/** GET an answer; query values that are null are left out. */
export function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  return ask(search ? `${path}?${search}` : path, { signal });
}

/** Send JSON, or no body at all; answers what the server answered. */
export function send(method, path, body = undefined, headers = {}) {
  if (body === undefined) return ask(path, { method, headers });
  return ask(path, {
    method,
    headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

async function ask(path, options) {
  let answer;
  let text;
  try {
    answer = await fetch(reads + path, { cache: "no-store", credentials: "same-origin", ...options });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable("the server cannot be reached");
  }
  const data = text ? parseOr(text) : {};
  if (answer.ok) return data;
  throw new Refused(answer.status, data.error ?? { code: "defect", message: `the server answered ${answer.status}` });
}

function parseOr(text) {
  try {
    return parse(text);
  } catch {
    return {};
  }
}

/** A key no other request has: repeating a request under it has one effect (WB-12). */
export function requestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `page-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Say why something was refused, in words and with what to do. */
export function reason(error) {
  if (error instanceof Unreachable) return "The server cannot be reached.";
  if (!(error instanceof Refused)) return String(error.message ?? error);
  const then = { same_id: " It may be sent again.", reread: " Look again and decide anew.", later: " Try again later." };
  return `${error.message}.${then[error.retry] ?? ""}`.replace(/\.\./g, ".");
}
