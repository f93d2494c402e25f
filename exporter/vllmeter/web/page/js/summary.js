// A picked window: what every server did in it. The numbers are worked out by the exporter from its own cells.

import { $, copy, el, put, save } from "./dom.js";
import * as f from "./format.js";

const seconds = (name) => (w) => f.seconds(w[name]);
const COLUMNS = [
  ["requests", (w) => f.count(w.ttft_requests), "ttft_requests"],
  ["TTFT mean", seconds("ttft_mean"), "ttft_mean"],
  ["TTFT jitter", (w) => f.interval([w.ttft_jitter_lower, w.ttft_jitter_upper]), "ttft_jitter_lower"],
  ["TTFT p95", (w) => f.interval(w.ttft_quantiles["0.95"]), "ttft_quantiles[0.95]"],
  ["ITL mean", seconds("itl_mean"), "itl_mean"],
  ["e2e mean", seconds("e2e_mean"), "e2e_mean"],
  ["preempted", (w) => f.count(w.preemptions), "preemptions"],
  ["generated tokens", (w) => f.count(w.generation_tokens), "generation_tokens"],
  ["prefix hits", (w) => f.percent(w.prefix_hit_ratio, 1), "prefix_hit_ratio"],
  ["peak waiting", (w) => f.count(w.requests_waiting_peak), "requests_waiting_peak"],
  ["peak KV", (w) => f.percent(w.kv_cache_usage_peak, 1), "kv_cache_usage_peak"],
  ["peak memory", (w) => f.gib(Object.values(w.gpu_memory_peak).length ? Object.values(w.gpu_memory_peak).reduce((a, b) => a + b, 0) : null), "gpu_memory_peak"],
];

const local = (unix) => f.clock(unix);

// "14:03:20" of today or yesterday -> Unix seconds near `now`
export function parseClock(text, now) {
  const match = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(text.trim());
  if (!match) return null;
  const day = new Date(now * 1000);
  day.setHours(Number(match[1]), Number(match[2]), Number(match[3] ?? 0), 0);
  let at = day.getTime() / 1000;
  if (at > now + 60) at -= 86400;
  return at;
}

export class Summary {
  constructor(app) {
    this.app = app;
    this.node = $("summary");
    this.window = null;
    this.asked = 0;
    const time = { type: "text", class: "time", maxlength: "8", placeholder: "14:03:20", autocomplete: "off", onkeydown: (event) => event.key === "Enter" && this.#typed() };
    this.from = el("input", { ...time, id: "from" });
    this.to = el("input", { ...time, id: "to" });
    this.status = el("p", { class: "dim", role: "status" });
    this.head = el("thead");
    this.body = el("tbody");
    this.csv = el("a", { class: "button", download: "vllmeter-window.csv" }, "CSV");
    this.node.append(
      el("div", { class: "bar" },
        el("h2", { id: "summary-title", text: "Picked window" }),
        el("div", { class: "tools" },
          el("label", { class: "field" }, "from ", this.from),
          el("label", { class: "field" }, "to ", this.to),
          el("button", { type: "button", onclick: () => this.#typed() }, "Show"),
          el("button", { type: "button", onclick: () => this.#copy() }, "Copy as Markdown"),
          this.csv,
          el("button", { type: "button", onclick: () => this.#json() }, "JSON"),
          el("button", { type: "button", class: "primary", onclick: () => app.live() }, "Back to live (Esc)"),
        ),
      ),
      this.status,
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Figures of the picked window" }, el("table", {}, el("caption", { class: "visually-hidden", text: "What every server did in the picked window" }), this.head, this.body)),
    );
    this.head.append(el("tr", {}, el("th", { scope: "col", text: "server" }), ...COLUMNS.map(([name]) => el("th", { scope: "col", class: "right", text: name }))));
  }

  async show(from, to) {
    this.window = { from, to };
    this.node.hidden = false;
    this.from.value = local(from);
    this.to.value = local(to);
    this.csv.href = `api/history?format=csv&from=${from.toFixed(3)}&to=${to.toFixed(3)}`;
    put(this.status, "asking …");
    const asked = ++this.asked;
    let data;
    try {
      const answer = await fetch(`api/window?from=${from.toFixed(3)}&to=${to.toFixed(3)}`);
      if (!answer.ok) throw new Error(await answer.text());
      data = await answer.json();
    } catch (error) {
      if (asked === this.asked) put(this.status, `The exporter did not answer: ${error.message}`);
      return;
    }
    if (asked !== this.asked) return;
    this.data = data;
    put(this.status, `${local(from)} to ${local(to)}, ${f.span(to - from)}. Requests, means and counts are exact; jitter and p95 lie between the two figures.`);
    this.body.replaceChildren(...data.windows.map((item) => this.#row(item)));
  }

  #row(item) {
    const w = item.figures;
    return el("tr", { "data-server": item.server }, el("th", { scope: "row", text: item.server }), ...COLUMNS.map(([name, show, field]) => {
      const text = show(w);
      return el("td", { class: "right", "data-column": name, title: text === f.NONE ? f.reason(w.absent[field] ?? w.absent[field.replace(/\[.*/, "")]) : null, text });
    }));
  }

  hide() {
    this.asked += 1;
    this.node.hidden = true;
    this.window = null;
  }

  #typed() {
    const now = this.app.store.wall;
    const from = parseClock(this.from.value, now);
    const to = parseClock(this.to.value, now);
    if (from === null || to === null || from >= to) put(this.status, "Give two times of the last 15 minutes as 14:03:20; the first must be the earlier one.");
    else this.app.select(from, to);
  }

  markdown() {
    const rows = this.data.windows.map((item) => `| ${item.server} | ${COLUMNS.map(([, show]) => show(item.figures)).join(" | ")} |`);
    return [
      `vLLM, ${new Date(this.data.from * 1000).toISOString()} to ${new Date(this.data.to * 1000).toISOString()} (${f.span(this.data.to - this.data.from)}), vllmeter ${this.app.store.version}`,
      "",
      `| server | ${COLUMNS.map(([name]) => name).join(" | ")} |`,
      `|---|${COLUMNS.map(() => "---:").join("|")}|`,
      ...rows,
      "",
    ].join("\n");
  }

  async #copy() {
    if (this.data) put(this.status, (await copy(this.markdown())) ? "Copied." : "The browser did not allow copying.");
  }

  async #json() {
    if (!this.data) return;
    const { from, to } = this.window;
    const answer = await fetch(`api/history?from=${from.toFixed(3)}&to=${to.toFixed(3)}`);
    save(JSON.stringify({ summary: this.data, history: await answer.json() }), "vllmeter-window.json", "application/json");
  }
}
