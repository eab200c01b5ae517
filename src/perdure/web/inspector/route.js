// The address says what is shown: everything after `#` (WB-26, WB-28, WB-31).
//
//   #/?state=working&q=words&sort=name           sessions
//   #/approvals                                  what waits for a decision, in all sessions
//   #/s/ID/c/CONV                                a conversation; ?at=SEQ as it was, ?entry=SEQ there
//   #/s/ID/c/CONV/VIEW                           another view of it

export const VIEWS = {
  conversation: "Conversation",
  approvals: "Approvals",
  tasks: "Tasks",
  timeline: "Timeline",
  context: "Context",
  values: "Values",
  usage: "Usage",
};

/** Read an address into a place. */
export function read(hash = location.hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(search));
  const [first, session, , conv = "root", view = "conversation"] = path.split("/").map(decodeURIComponent);
  const at = /^\d+$/.test(query.at ?? "") ? Number(query.at) : null;
  if (first === "approvals") return { page: "approvals", query };
  if (first !== "s" || !session) return { page: "sessions", query };
  return { page: "session", session, conv, view: view in VIEWS ? view : "conversation", at, query };
}

/** Write a place as an address. */
export function write(place) {
  const query = new URLSearchParams(
    Object.entries({ ...place.query, at: place.at ?? "" }).filter(([, value]) => value !== ""),
  ).toString();
  let path = "#/";
  if (place.page === "approvals") path = "#/approvals";
  if (place.page === "session") {
    path = `#/s/${encodeURIComponent(place.session)}/c/${place.conv}`;
    if (place.view !== "conversation") path += `/${place.view}`;
  }
  return query ? `${path}?${query}` : path;
}

/** Go to a place; `replace` leaves no step in the browser's history. */
export function go(place, { replace = false } = {}) {
  const address = write(place);
  if (address === location.hash) return;
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = address;
}
