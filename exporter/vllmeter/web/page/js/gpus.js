// Who holds the memory of each GPU: one bar for the card, one per server against its budget.

import { $, attr, el, hide, put, value } from "./dom.js";
import * as f from "./format.js";

const MOST_ROWS = 12;

export class Gpus {
  constructor(app) {
    this.app = app;
    this.panels = new Map();
  }

  update() {
    const { store } = this.app;
    const gpus = this.app.still?.gpus ?? store.gpus;
    const root = $("gpus");
    const seen = new Set();
    for (const card of gpus) {
      seen.add(card.uuid);
      let panel = this.panels.get(card.uuid);
      if (!panel) {
        panel = new Panel(card, this.app);
        this.panels.set(card.uuid, panel);
        root.append(panel.node);
      }
      panel.update(card);
    }
    for (const [uuid, panel] of this.panels) {
      if (!seen.has(uuid)) {
        panel.node.remove();
        this.panels.delete(uuid);
      }
    }
    let why = root.querySelector(":scope > .why");
    if (!gpus.length) {
      why ??= root.appendChild(el("p", { class: "why plain" }));
      put(why, `No GPU reading: ${store.host.nvml_reason ?? "no GPU was found"}`);
    } else why?.remove();
  }
}

class Panel {
  constructor(card, app) {
    this.app = app;
    this.title = el("h3");
    this.facts = el("p", { class: "dim facts" });
    this.bar = el("div", { class: "stack", role: "img" });
    this.legend = el("ul", { class: "keys" });
    this.rows = el("div", { class: "budgets" });
    this.more = el("button", { type: "button", class: "link", onclick: () => { this.all = !this.all; this.update(this.card); } });
    this.sum = el("p", { class: "dim sum" });
    this.node = el("article", { class: "gpu", "data-gpu": card.uuid }, el("div", { class: "line" }, this.title, this.facts), this.bar, this.legend, this.rows, this.more, this.sum);
    this.parts = new Map();
    this.keys = new Map();
    this.lines = new Map();
    this.all = false;
  }

  update(card) {
    this.card = card;
    put(this.title, `GPU ${card.gpu} · ${card.name}`);
    put(this.facts, [
      f.known(card.utilization) ? `${f.percent(card.utilization)} busy` : null,
      f.known(card.power) ? `${card.power.toFixed(0)} W` : null,
      f.known(card.temperature) ? `${card.temperature.toFixed(0)} °C` : null,
      f.known(card.used) && f.known(card.total) ? `${f.gib(card.used)} of ${f.gib(card.total)} used` : `used memory not known: ${card.absent.memory_used_bytes ?? "no reading"}`,
    ].filter(Boolean).join(" · "));
    this.#bar(card);
    this.#rows(card);
    const s = card.sum;
    hide(this.sum, !s);
    if (s) {
      const mark = s.estimate ? "~" : "";
      put(this.sum, `Budgets ${f.gib(s.budgets)} + contexts and what else is outside ${mark}${f.gib(s.on_top)}${s.other ? ` + other programs ${f.gib(s.other)}` : ""} of ${f.gib(s.total)}: head room ${mark}${f.gib(s.head_room)}${s.without ? ` (without ${s.without} server${s.without > 1 ? "s" : ""} whose budget is not known)` : ""}`);
      this.sum.classList.toggle("bad-text", s.head_room < 0);
    }
  }

  #bar(card) {
    const total = card.total;
    const parts = [];
    for (const server of card.servers) {
      if (f.known(server.used.value)) parts.push([`server:${server.name}`, server.name, server.used.value, `s${this.app.store.servers.get(server.name)?.colour ?? 0}`, server.used.estimate]);
    }
    card.other.forEach((other, i) => {
      if (f.known(other.used)) parts.push([`other:${i}`, `${other.program}${other.orphan ? " (left over)" : ""}`, other.used, "other", false]);
    });
    if (f.known(card.unattributed) && card.unattributed > 0) parts.push(["unattributed", "unattributed", card.unattributed, "unattributed", false]);
    else if (!f.known(card.unattributed) && f.known(card.used)) {
      const rest = card.used - parts.reduce((sum, part) => sum + part[2], 0);
      if (rest > 0) parts.push(["unknown", "used, by whom is not known", rest, "unattributed", false]);
    }
    if (f.known(card.reserved) && card.reserved > 0) parts.push(["reserved", "driver", card.reserved, "reserved", false]);
    const free = ["free", "free", card.free, "free", false];
    const seen = new Set();
    let words = [];
    for (const [id, name, bytes, style, estimate] of f.known(card.free) ? [...parts, free] : parts) {
      seen.add(id);
      let part = this.parts.get(id);
      if (!part) {
        part = el("span", { class: `part ${style}` });
        this.parts.set(id, part);
        const number = el("b");
        const key = el("li", {}, el("i", { class: `swatch ${style}`, "aria-hidden": "true" }), el("span", { text: name }), number);
        this.keys.set(id, { key, number });
      }
      const text = `${estimate ? "~" : ""}${f.gib(bytes)}`;
      const share = total ? (bytes / total) * 100 : 0;
      if (part.dataset.share !== share.toFixed(3)) {
        part.style.flexBasis = `${share}%`;
        part.dataset.share = share.toFixed(3);
      }
      attr(part, "title", `${name}: ${text}`);
      value(this.keys.get(id).number, text, bytes);
      words.push(`${name} ${text}`);
    }
    for (const id of [...this.parts.keys()]) {
      if (!seen.has(id)) {
        this.parts.get(id).remove();
        this.keys.get(id).key.remove();
        this.parts.delete(id);
        this.keys.delete(id);
      }
    }
    const order = [...seen];
    const most = this.all ? order.length : MOST_ROWS + 4;
    this.#place(this.bar, order.map((id) => this.parts.get(id)));
    const keyed = order.length <= most ? order : [...order.filter((id) => !id.startsWith("server:")), ...order.filter((id) => id.startsWith("server:"))].slice(0, most);
    this.#place(this.legend, keyed.map((id) => this.keys.get(id).key));
    if (words.length > 12) words = [...words.slice(0, 12), `and ${words.length - 12} more`];
    attr(this.bar, "aria-label", `GPU ${card.gpu}, ${f.gib(total)}: ${words.join(", ")}`);
  }

  // Each server against its budget, all on one scale.
  #rows(card) {
    const numbers = card.servers.flatMap((s) => [s.used.value, s.budget.value]).filter(f.known);
    const scale = Math.max(...numbers, 1);
    const shown = this.all ? card.servers : card.servers.slice(0, MOST_ROWS);
    const seen = new Set();
    for (const server of shown) {
      seen.add(server.name);
      let row = this.lines.get(server.name);
      if (!row) {
        const fill = el("span", { class: `fill s${this.app.store.servers.get(server.name)?.colour ?? 0}` });
        const mark = el("span", { class: "mark" });
        const text = el("span", { class: "text" });
        row = { fill, mark, text, node: el("div", { class: "budget" }, el("span", { class: "name", title: server.name, text: server.name }), el("div", { class: "track", "aria-hidden": "true" }, fill, mark), text) };
        this.lines.set(server.name, row);
      }
      const { used, budget } = server;
      row.fill.style.width = f.known(used.value) ? `${(used.value / scale) * 100}%` : "0";
      hide(row.mark, !f.known(budget.value));
      if (f.known(budget.value)) row.mark.style.left = `${(budget.value / scale) * 100}%`;
      const over = f.known(used.value) && f.known(budget.value) && used.value > budget.value + (server.allowance.value ?? 0);
      row.node.classList.toggle("over", over);
      const share = f.known(used.value) && f.known(budget.value) ? ` (${f.percent(used.value / budget.value)})` : "";
      put(row.text, f.known(used.value) ? `${f.bare(used)} of ${f.quantity(budget)}${share}${over ? ", over budget" : ""}` : `used not known: ${used.reason ?? "no reading"}`);
    }
    for (const name of [...this.lines.keys()]) {
      if (!seen.has(name)) {
        this.lines.get(name).node.remove();
        this.lines.delete(name);
      }
    }
    this.#place(this.rows, shown.map((s) => this.lines.get(s.name).node));
    hide(this.more, card.servers.length <= MOST_ROWS);
    put(this.more, this.all ? "Show fewer" : `Show all ${card.servers.length} servers`);
  }

  #place(parent, nodes) {
    if (nodes.length !== parent.children.length || nodes.some((node, i) => parent.children[i] !== node)) parent.replaceChildren(...nodes);
  }
}
