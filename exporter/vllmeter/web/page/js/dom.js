// Small helpers for the document. Text only ever becomes text: nothing here parses markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Text that somebody is selecting stays as it is until the selection is gone: a number can be copied while it moves.
function selected(node) {
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && selection.containsNode(node, true);
}

// Writes only what changed: most text stays the same from second to second.
export function put(node, text) {
  if (node.textContent !== text && !selected(node)) node.textContent = text;
}

export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

// A number on the page with its exact value beside it.
export function value(node, text, raw, title) {
  if (node.textContent !== text && selected(node)) return;
  put(node, text);
  attr(node, "data-raw", raw === undefined ? null : JSON.stringify(raw));
  attr(node, "title", title || null);
}

export function hide(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Over plain HTTP from another host there is no clipboard: the old way works there.
    const area = el("textarea", { class: "visually-hidden", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function save(content, name, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
