// One card per server. Its insides exist only while it is near the screen, so that 200 servers cost what is visible.

import { Chart, budgetOf, offered, usedOf, view } from "./charts.js";
import { $, attr, el, hide, put, value } from "./dom.js";
import * as f from "./format.js";

const TROUBLE = { bad: 0, warn: 1, wait: 2, good: 3 };

export const kind = (server) => (f.STATES[server.now?.state] ?? ["?", "", "warn"])[2];

const jitter = (w) => {
  if (!w || !f.known(w.ttft_jitter_lower)) return "";
  return ` ± ${f.interval([w.ttft_jitter_lower, w.ttft_jitter_upper])}`;
};

// Why a figure of the window is not there; null when it is.
const why = (s, shown, name) => (f.known(shown) ? null : f.reason(s.now.window?.absent?.[name] ?? (s.now.window ? null : "no_samples")));

// Why a gauge of now is not there: a dead engine has none, whatever the window still holds from before its death.
const whyNow = (s, shown, name) => (s.now.gauges_withheld ? f.reason("engine_dead") : why(s, shown, name));
const peakOr = (s, shown, name, words) => (f.known(s.now.window?.[name]) && !s.now.gauges_withheld ? `peak in 60 s: ${words(s.now.window[name])}` : whyNow(s, shown, name));

// The figures in a card's head: text, raw, what the title says, whether it stands out. `raw` is the exact value; tests and scripts compare it with snapshot.json.
const FIGURES = [
  ["running", "Running", (s) => [f.count(s.now.running), s.now.running, whyNow(s, s.now.running, "requests_running_peak")]],
  ["waiting", "Waiting", (s) => [f.count(s.now.waiting), s.now.waiting, peakOr(s, s.now.waiting, "requests_waiting_peak", f.count)]],
  ["kv", "KV cache", (s) => [f.percent(s.now.kv_cache_usage, 1), s.now.kv_cache_usage, peakOr(s, s.now.kv_cache_usage, "kv_cache_usage_peak", (x) => f.percent(x, 1))]],
  ["ttft", "TTFT mean ± jitter", (s) => {
    const w = s.now.window;
    if (!w || !f.known(w.ttft_mean)) return [f.NONE, null, f.reason(w?.absent?.ttft_mean ?? (w ? null : "no_samples"))];
    return [f.seconds(w.ttft_mean) + jitter(w), w.ttft_mean, `${f.count(w.ttft_requests)} requests in 60 s. The spread of single requests lies between the two figures after ±.`];
  }],
  ["p95", "TTFT p95", (s) => {
    const w = s.now.window;
    const pair = w?.ttft_quantiles?.["0.95"];
    return [f.interval(pair), pair ?? null, pair ? "The 95th of 100 requests lies between these" : f.reason(w?.absent?.["ttft_quantiles[0.95]"] ?? w?.absent?.ttft_quantiles ?? w?.absent?.ttft_mean)];
  }],
  ["itl", "ITL mean", (s) => [f.seconds(s.now.window?.itl_mean), s.now.window?.itl_mean, why(s, s.now.window?.itl_mean, "itl_mean")]],
  ["tokens", "Tokens/s", (s) => [f.rate(s.now.window?.generation_tokens_per_second), s.now.window?.generation_tokens_per_second, why(s, s.now.window?.generation_tokens_per_second, "itl_mean") ?? "generated, mean of 60 s"]],
  ["preemptions", "Preempted", (s) => [f.count(s.now.window?.preemptions), s.now.window?.preemptions, why(s, s.now.window?.preemptions, "preemptions") ?? "in the last 60 s", s.now.window?.preemptions > 0]],
  ["memory", "Memory / budget", (s) => {
    const used = usedOf(s);
    const budget = budgetOf(s);
    const text = used || budget ? `${used ? f.bare(used) : f.NONE} / ${budget ? f.quantity(budget) : f.NONE}` : f.NONE;
    return [text, used?.value ?? null, used ? null : s.facts?.attribution?.reason, (s.facts?.memory ?? []).some((row) => row.over)];
  }],
];

export class Cards {
  constructor(app) {
    this.app = app;
    this.cards = new Map();
    this.list = $("cards");
    this.collapsed = null; // null = not decided yet: depends on how many servers there are
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const card = this.cards.get(entry.target.dataset.server);
        if (card) card.seen(entry.isIntersecting);
      }
      app.draw();
    }, { rootMargin: "400px 0px" });
    $("filter").addEventListener("input", () => this.arrange(true));
    for (const id of ["show", "sort"]) $(id).addEventListener("change", () => this.arrange(true));
    $("toggle-all").addEventListener("click", () => this.all());
    this.sortedAt = 0;
  }

  // Cards follow the servers that there are.
  sync() {
    const { store } = this.app;
    this.collapsed ??= store.order.length > 6;
    for (const [name, card] of this.cards) {
      if (store.servers.get(name) !== card.server) {
        this.observer.unobserve(card.node);
        card.destroy();
        card.node.remove();
        this.cards.delete(name);
      }
    }
    let grown = false;
    for (const name of store.order) {
      if (this.cards.has(name)) continue;
      const card = new Card(store.servers.get(name), this.app, !this.collapsed);
      this.cards.set(name, card);
      this.list.append(card.node);
      this.observer.observe(card.node);
      grown = true;
    }
    const changing = $("sort").value !== "configured" && $("sort").value !== "name";
    const filtering = $("show").value !== "all" || $("filter").value !== "";
    if (grown || ((changing || filtering) && performance.now() - this.sortedAt > 5000)) this.arrange(grown);
    put($("toggle-all"), [...this.cards.values()].some((card) => card.open) ? "Collapse all" : "Expand all");
  }

  // Filter and sort. While the keyboard is inside the list, its order stays.
  arrange(asked) {
    if (!asked && (this.list.contains(document.activeElement) || this.list.matches(":hover"))) return;
    this.sortedAt = performance.now();
    const { store } = this.app;
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const show = $("show").value;
    const shown = [];
    for (const name of store.order) {
      const card = this.cards.get(name);
      if (!card) continue;
      const server = this.app.shown(card.server);
      const { now, facts } = server;
      const text = `${name} ${facts?.model ?? ""} ${now?.state ?? ""} ${(f.STATES[now?.state] ?? [])[1] ?? ""}`.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      const wanted = show === "all" || (show === "busy" ? (now?.running ?? 0) + (now?.waiting ?? 0) > 0 : TROUBLE[kind(server)] < 2);
      hide(card.node, !(fits && wanted));
      if (fits && wanted) shown.push(card);
    }
    const of = (card) => this.app.shown(card.server);
    const most = (get) => (a, b) => (get(of(b)) ?? -1) - (get(of(a)) ?? -1);
    const orders = {
      configured: null,
      name: (a, b) => a.server.name.localeCompare(b.server.name, "en", { numeric: true }),
      trouble: (a, b) => TROUBLE[kind(of(a))] - TROUBLE[kind(of(b))],
      waiting: most((s) => s.now?.waiting),
      ttft: most((s) => s.now?.window?.ttft_mean),
      kv: most((s) => s.now?.kv_cache_usage),
      memory: most((s) => usedOf(s)?.value),
    };
    const order = orders[$("sort").value];
    const sorted = order ? [...shown].sort(order) : shown;
    const hidden = [...this.cards.values()].filter((card) => card.node.hidden);
    const wantedOrder = [...sorted, ...hidden].map((card) => card.node);
    if (wantedOrder.some((node, i) => this.list.children[i] !== node)) this.list.append(...wantedOrder);
    put($("count"), shown.length === store.order.length ? String(shown.length) : `${shown.length} of ${store.order.length}`);
    hide($("nothing"), shown.length > 0);
    put($("nothing"), store.order.length ? "No server fits the filter." : "No server is configured, and no vLLM process was found on this host.");
    this.app.draw();
  }

  all() {
    const open = ![...this.cards.values()].some((card) => card.open);
    for (const card of this.cards.values()) card.toggle(open);
    this.sync();
    this.app.draw();
  }

  visible() {
    return [...this.cards.values()].filter((card) => card.near && !card.node.hidden);
  }

  rebuild() {
    for (const card of this.cards.values()) card.closeCharts();
  }

  // Paper shows what was never scrolled to, too.
  fillAll() {
    for (const card of this.cards.values()) if (!card.node.hidden) card.seen(true);
  }
}

class Card {
  constructor(server, app, open) {
    this.server = server;
    this.app = app;
    this.open = open;
    this.near = false;
    this.charts = [];
    this.node = el("article", { class: "card", "data-server": server.name, "aria-label": server.name });
    this.node.classList.toggle("open", open);
  }

  seen(near) {
    if (near === this.near) return;
    this.near = near;
    if (near && !this.filled) this.#fill();
    else if (this.app.store.order.length > 8) this.#empty();
  }

  #fill() {
    const name = this.server.name;
    this.button = el("button", { type: "button", class: "expander", "aria-expanded": String(this.open), "aria-label": `Charts of ${name}`, onclick: () => { this.toggle(!this.open); this.app.draw(); } }, el("span", { "aria-hidden": "true" }, "▸"));
    this.state = el("span", { class: "pill", "data-v": "state" });
    this.reason = el("span", { class: "reason", "data-v": "reason" });
    this.model = el("span", { class: "dim model" });
    this.figures = FIGURES.map(([id, label]) => {
      const number = el("dd", { "data-v": id });
      return { number, node: el("div", { class: `figure f-${id}` }, el("dt", { text: label }), number) };
    });
    this.extra = el("p", { class: "extra dim" });
    this.area = el("div", { class: "charts" });
    this.node.replaceChildren(
      el("div", { class: "head" },
        el("div", { class: "who" }, this.button, el("i", { class: `swatch s${this.server.colour}`, "aria-hidden": "true" }), el("h3", { title: name, text: name }), this.state, this.model),
        this.reason,
        el("dl", { class: "figures" }, ...this.figures.map((figure) => figure.node)),
        this.extra,
      ),
      this.area,
    );
    this.node.style.minHeight = "";
    this.filled = true;
  }

  #empty() {
    // Keeps its height, so that scrolling does not jump.
    this.node.style.minHeight = `${this.node.offsetHeight}px`;
    this.closeCharts();
    this.node.replaceChildren();
    this.filled = false;
  }

  toggle(open) {
    this.open = open;
    this.node.classList.toggle("open", open);
    if (this.filled) {
      attr(this.button, "aria-expanded", String(open));
      if (!open) this.closeCharts();
    }
    this.node.style.minHeight = "";
  }

  closeCharts() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
    if (this.filled) this.area.replaceChildren();
  }

  destroy() {
    this.closeCharts();
  }

  // While the page stands still, so do text and charts.
  update(from, to, moved) {
    const server = this.app.shown(this.server);
    if (!this.filled || !server.now) return;
    this.#text(server);
    if (!this.open) return;
    const specs = offered(server);
    if (specs.length !== this.charts.length) {
      this.closeCharts();
      this.charts = specs.map((spec) => new Chart(spec, this.server, this.app));
      this.area.replaceChildren(...this.charts.map((chart) => chart.node));
      this.area.dataset.count = String(specs.length);
      moved = true;
    }
    if (!moved) return;
    const shared = view(server, from, to);
    for (const chart of this.charts) chart.update(shared, from, to);
  }

  #text(server) {
    const { now, facts } = server;
    const [sign, word, tone] = f.STATES[now.state] ?? ["?", now.state, "warn"];
    put(this.state, `${sign} ${word}`);
    attr(this.state, "class", `pill ${tone}`);
    attr(this.state, "data-raw", JSON.stringify(now.state));
    const since = f.known(now.since) && now.state !== "busy" && now.state !== "ready" && !/ \d+ s\b/.test(now.reason) ? `, for ${f.span(this.app.wall() - now.since)}` : "";
    put(this.reason, `${now.reason}${since}`);
    hide(this.reason, tone === "good" && !this.open);
    const model = [facts?.model, facts?.version ? `vLLM ${facts.version}` : null].filter(Boolean).join(" · ");
    put(this.model, model);
    attr(this.model, "title", model);
    FIGURES.forEach(([, , show], i) => {
      const [text, raw, title, hot] = show(server);
      value(this.figures[i].number, text, raw ?? null, title);
      this.figures[i].number.classList.toggle("hot", Boolean(hot));
    });
    const notes = [];
    const shared = Object.values(now.contention ?? {}).filter(f.known);
    if (shared.length) notes.push(`busy together with a neighbour ${f.percent(Math.max(...shared))} of its busy time (60 s)`);
    if (facts) {
      if (facts.attribution.state !== "measured") notes.push(`memory: ${facts.attribution.reason || facts.attribution.state}`);
      for (const row of facts.memory) {
        if (row.over) notes.push(`over budget on GPU ${row.gpu}: high water ${f.quantity(row.high_water)}`);
        if (row.suspended) notes.push(`budget not compared: ${row.suspended}`);
      }
      if (facts.restarts) notes.push(`${facts.restarts} restart${facts.restarts > 1 ? "s" : ""}${facts.last_restart ? `, the last at ${f.clock(facts.last_restart)}` : ""}`);
      if (facts.last_change) notes.push(`changed at ${f.clock(facts.last_config_change)}: ${facts.last_change}`);
      notes.push(...facts.findings);
    }
    if (f.known(now.in_flight) && now.in_flight > 2) notes.push(`an answer has been awaited for ${f.span(now.in_flight)}`);
    put(this.extra, notes.join(" · "));
    hide(this.extra, !notes.length || (!this.open && tone === "good"));
  }
}
