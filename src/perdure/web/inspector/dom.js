// Making elements. Every text becomes a text node and no attribute is ever made of HTML, so
// whatever a model, a tool or a file says stays text (WB-25).

/**
 * Make an element: `h("button.quiet", {type: "button", onclick: act}, "Abort")`.
 * A function under an `on…` name listens; true writes an empty attribute; null, undefined and
 * false write none. Children are nodes, texts, numbers, or arrays of these; null is left out.
 */
export function h(spec, attributes, ...children) {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes ?? {})) set(element, name, value);
  append(element, children);
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) {
    if (typeof value !== "function") throw new TypeError(`${name} takes a function`);
    element.addEventListener(name.slice(2), value);
  } else if (name === "href" && !String(value).startsWith("#") && !isWeb(value)) {
    throw new TypeError(`no link of this page leads to ${value}`);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

function isWeb(address) {
  return /^(https?:\/\/|\/v1\/)/.test(address);
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Put other children into an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Change an element's text only when it differs, so that nothing flickers or is said twice. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Say a change of state to people who do not see the page; never streamed text (WB-34). */
export function say(text) {
  put(document.getElementById("said"), text);
}

/** Open a dialog of this content; it closes by Escape, its button, or what the content does. */
export function dialog(title, ...content) {
  const opener = document.activeElement;
  const heading = h("h2", { id: "dialog-title" }, title);
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, heading, content);
  box.addEventListener("close", () => {
    box.remove();
    if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
  });
  document.body.append(box);
  box.showModal();
  return box;
}

/** Say whether a key press belongs to a field and not to the page (WB-32). */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select"));
}
