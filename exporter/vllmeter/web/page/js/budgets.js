// The table of `vllmeter check`, kept up to date.

import { $, attr, el, put } from "./dom.js";
import * as f from "./format.js";

const SHORT = { weights: "w", kv_cache: "kv", activation_peak: "act", non_torch: "nt", cuda_graphs: "gr", context: "ctx" };
const COLUMNS = ["server", "GPU", "model", "version", "budget", "used", "high water", "expected", "parts", "KV tokens", "max conc.", "method"];
const RIGHT = new Set(["budget", "used", "high water", "expected", "KV tokens", "max conc."]);

function cells(server, row) {
  const { facts, now } = server;
  const used = row ? now.used[row.uuid] : null;
  const parts = row ? Object.keys(SHORT).filter((name) => f.known(row.parts[name]?.value)).map((name) => `${SHORT[name]} ${f.bare(row.parts[name])}`) : [];
  const { attribution: a } = facts;
  return [
    [server.name],
    [row?.gpu ?? f.NONE],
    [facts.model ?? f.NONE],
    [facts.version ?? f.NONE],
    [row ? f.bare(row.budget) + (row.suspended ? " (not now)" : "") : f.NONE, row?.budget],
    [f.bare(used), used],
    [f.bare(row?.high_water), row?.high_water],
    [f.bare(row?.expected), row?.expected],
    [parts.join(" ") || f.NONE],
    [f.known(facts.kv_tokens.value) ? Math.round(facts.kv_tokens.value).toLocaleString("en-US") : f.NONE, facts.kv_tokens],
    [f.known(facts.max_concurrency) ? facts.max_concurrency.toFixed(2) : f.NONE],
    [a.state === "unavailable" ? "unavailable" : a.state === "estimated" ? `${a.method} (estimate)` : a.method, { reason: a.reason }],
  ];
}

export class Budgets {
  constructor(app) {
    this.app = app;
    this.details = $("budgets");
    this.table = $("budget-table");
    this.rows = new Map();
    this.near = false;
    this.details.addEventListener("toggle", () => this.update());
    new IntersectionObserver((entries) => { this.near = entries.at(-1).isIntersecting; this.update(); }).observe(this.details);
    this.table.append(el("caption", { class: "visually-hidden", text: "Budgets and memory of every server, in GiB" }), el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col", class: RIGHT.has(name) ? "right" : null, text: name })))));
    this.body = this.table.appendChild(el("tbody"));
    $("budget-sums").append(el("p", { class: "dim", text: `GiB; ~ estimate, – not known. Parts: ${Object.entries(SHORT).map(([name, short]) => `${short} ${name.replaceAll("_", " ")}`).join(", ")}` }));
  }

  update() {
    const { store } = this.app;
    if (!this.decided && store.order.length) {
      this.decided = true;
      if (store.order.length > 20) this.details.open = false;
    }
    if (!this.near || !this.details.open) return;
    const seen = [];
    for (const name of store.order) {
      const server = this.app.shown(store.servers.get(name));
      if (!server.facts || !server.now) continue;
      const memory = server.facts.memory.length ? server.facts.memory : [null];
      for (const row of memory) {
        const id = `${name} ${row?.uuid ?? ""}`;
        let line = this.rows.get(id);
        if (!line) {
          const nodes = COLUMNS.map((column, i) => (i === 0 ? el("th", { scope: "row" }) : el("td", { class: RIGHT.has(column) ? "right" : null, "data-column": column })));
          line = { nodes, node: el("tr", { "data-server": name }, ...nodes) };
          this.rows.set(id, line);
        }
        cells(server, row).forEach(([text, q], i) => {
          put(line.nodes[i], text);
          attr(line.nodes[i], "title", q ? [q.source ? `from ${q.source}` : null, q.reason].filter(Boolean).join(": ") || null : null);
        });
        seen.push(line.node);
      }
    }
    const there = new Set(seen);
    for (const [id, line] of this.rows) if (!there.has(line.node)) this.rows.delete(id);
    if (seen.length !== this.body.children.length || seen.some((node, i) => this.body.children[i] !== node)) this.body.replaceChildren(...seen);
  }
}
