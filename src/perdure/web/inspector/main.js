// Start: the cookie, the place the address names, the colour scheme, the keys.

import { AllApprovalsPage } from "./all_approvals.js";
import { dialog, fill, h, isTyping, put } from "./dom.js";
import { get, Refused, send } from "./http.js";
import { go, read } from "./route.js";
import { SessionPage } from "./session.js";
import { SessionsPage } from "./sessions.js";
import { many, SIGNS } from "./words.js";

const PAGES = { sessions: SessionsPage, approvals: AllApprovalsPage, session: SessionPage };
const WAITING_MS = 1_000;

const main = document.getElementById("main");
let page = null;

/** Exchange the token of the printed address for a cookie, and take it out of the address. */
async function signIn() {
  const token = location.hash.slice(1);
  if (token && !token.startsWith("/")) {
    history.replaceState(null, "", `${location.pathname}#/`);
    await send("POST", "/cookie", undefined, { Authorization: `Bearer ${token}` }).catch(() => undefined);
  }
  await get("/sessions", { limit: 1 });
}

/** Go where the address says; it may be the printed one once more. */
async function moved() {
  try {
    if (!page || !location.hash.startsWith("#/")) await signIn();
    show();
  } catch (error) {
    turnAway(error);
  }
}

function turnAway(error) {
  const isStranger = error instanceof Refused && error.status === 401;
  page?.close();
  page = null;
  fill(main, h("p.alone", null, isStranger ? "Open the address that perdure serve printed: it lets this browser in." : "The server cannot be reached; reload to try again."));
}

function show() {
  const place = read();
  if (page?.covers(place)) page.show(place);
  else {
    page?.close();
    page = new PAGES[place.page](place);
    main.replaceChildren(page.element);
    if (document.activeElement === document.body) page.element.querySelector("h1")?.focus({ preventScroll: true });
  }
  crumbs();
}

function crumbs() {
  const places = page.crumbs;
  fill(document.getElementById("crumbs"), places.length ? [h("a", { href: "#/" }, "Sessions"), h("span.long", null, " / "), h("span", { "aria-current": "page", dir: "auto" }, places[0])] : null);
}

// --------------------------------------------------------------- colour scheme

const SCHEMES = { "": "System", light: "Light", dark: "Dark" };

function scheme(chosen) {
  document.documentElement.dataset.scheme = chosen;
  const button = document.getElementById("scheme");
  put(button, SCHEMES[chosen]);
  button.setAttribute("aria-label", `Colours: ${SCHEMES[chosen]}`);
}

function nextScheme() {
  const names = Object.keys(SCHEMES);
  const chosen = names[(names.indexOf(document.documentElement.dataset.scheme ?? "") + 1) % names.length];
  localStorage.setItem("perdure.scheme", chosen);
  scheme(chosen);
}

// ------------------------------------------------------------------------ keys

const KEYS = [
  ["j, k", "next and previous entry, or session"],
  ["], [", "next and previous turn"],
  ["g", "go to a commit or an entry"],
  ["/", "search, or filter"],
  ["i", "write to the agent"],
  [".", "what the model is shown"],
  ["a", "approvals"],
  ["?", "this help"],
  ["Escape", "close what is open, leave a field"],
];

function help() {
  const rows = KEYS.map(([keys, words]) => h("tr", null, h("th", { scope: "row" }, h("kbd", null, keys)), h("td", null, words)));
  const box = dialog("Keys", h("table.keys", null, h("tbody", null, rows)),
    h("p.note", null, "No single key grants, denies or aborts. Keys are off while you type."),
    h("div.row", null, h("button", { type: "button", onclick: () => box.close() }, "Close")));
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "?") help();
  else if (!page?.key?.(event.key)) {
    if (event.key !== "a") return;
    go({ page: "approvals", query: {} });
  }
  event.preventDefault();
}

// ----------------------------------------------------------------- what waits

/** Keep the number of waiting approvals in the page's head true. */
async function waiting() {
  const link = document.getElementById("waiting");
  try {
    if (page && !document.hidden) {
      const { approvals } = await get("/approvals", { limit: 100 });
      link.hidden = !approvals.length;
      const words = many(approvals.length, "approval");
      if (link.getAttribute("aria-label") !== words) {
        link.setAttribute("aria-label", words);
        fill(link, `${SIGNS.waiting} ${approvals.length}`, h("span.long", null, words.replace(/^\S+/, "")));
      }
    }
  } catch {
    link.hidden = true;
  }
  setTimeout(waiting, 2 * WAITING_MS);
}

async function start() {
  scheme(localStorage.getItem("perdure.scheme") ?? "");
  document.getElementById("scheme").addEventListener("click", nextScheme);
  document.getElementById("help").addEventListener("click", help);
  document.getElementById("skip").addEventListener("click", () => main.focus());
  addEventListener("hashchange", moved);
  addEventListener("keydown", pressed);
  addEventListener("named", crumbs);
  await moved();
  waiting();
}

start();
