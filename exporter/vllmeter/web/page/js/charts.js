// The eight small charts of a server. All of them show the same time span and share one cursor.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { el, hide, put, value as putValue } from "./dom.js";
import * as f from "./format.js";
import { lowerBound } from "./store.js";

const HEIGHT = 118;
const ALL = new Set();

// ------------------------------------------------------------------ colours, read once per theme

let colours = {};

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["first", "second", "third", "band-low", "band-high", "grid", "ink", "dim", "run", "event", "limit"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// ------------------------------------------------------------------ rows -> columns with gaps

// A line must stop where nothing is known: a null row goes between samples that are too far apart.
export function view(server, from, to) {
  const { t, columns } = server;
  const interval = server.now?.interval ?? 1;
  const most = Math.max(2.5, 2.5 * interval);
  const first = Math.max(0, lowerBound(t, from) - 1);
  const last = Math.min(t.length, lowerBound(t, to) + 1);
  const x = [];
  const index = [];
  for (let i = first; i < last; i++) {
    if (i > first && t[i] - t[i - 1] > most) {
      x.push(t[i - 1] + 0.001);
      index.push(-1);
    }
    x.push(t[i]);
    index.push(i);
  }
  const pick = (name) => {
    const values = columns[name];
    return values ? index.map((i) => (i < 0 ? null : values[i])) : index.map(() => null);
  };
  return { x, pick };
}

function memoryView(server, from, to) {
  const { memoryT: t, memory } = server;
  const first = Math.max(0, lowerBound(t, from) - 1);
  const last = Math.min(t.length, lowerBound(t, to) + 1);
  const x = [];
  const used = [];
  for (let i = first; i < last; i++) {
    if (i > first && t[i] - t[i - 1] > 3.5) {
      x.push(t[i - 1] + 0.001);
      used.push(null);
    }
    x.push(t[i]);
    used.push(memory[i]);
  }
  return { x, used };
}

const spread = (mean, by, sign) => mean.map((m, i) => (m === null || by[i] === null ? null : Math.max(0, m + sign * by[i])));

export function budgetOf(server) {
  const rows = server.facts?.memory ?? [];
  if (!rows.length || rows.some((row) => !f.known(row.budget.value))) return null;
  return { value: rows.reduce((sum, row) => sum + row.budget.value, 0), estimate: rows.some((row) => row.budget.estimate) };
}

export function usedOf(server) {
  const all = Object.values(server.now?.used ?? {});
  if (!all.length || all.some((q) => !f.known(q.value))) return null;
  return { value: all.reduce((sum, q) => sum + q.value, 0), estimate: all.some((q) => q.estimate) };
}

const absent = (server, name) => f.reason(server.now?.window?.absent?.[name]);
const tick = { ratio: (v) => `${Math.round(v * 100)} %`, seconds: (v) => (v >= 1 ? `${Number(v.toFixed(2))} s` : `${Number((v * 1000).toFixed(2))} ms`), count: f.count, gib: (v) => `${Number((v / 2 ** 30).toFixed(2))} GiB`, rate: f.rate };

// ------------------------------------------------------------------ what each chart shows

const line = (label, colour, more = {}) => ({ label, colour, width: 1.6, ...more });

export const CHARTS = [
  {
    id: "queue",
    title: "Requests",
    unit: "count",
    lines: [line("running", "first"), line("waiting", "second", { dash: [5, 3] })],
    data: (server, v) => [v.x, v.pick("running"), v.pick("waiting")],
    now: (server) => [server.now?.running, server.now?.waiting],
    show: f.count,
    least: 4,
    why: (server) => (server.now?.running === null ? "this server does not say" : null),
  },
  {
    id: "kv",
    title: "KV cache used",
    unit: "ratio",
    lines: [line("now", "first", { fill: true })],
    data: (server, v) => [v.x, v.pick("kv_cache_usage")],
    now: (server) => [server.now?.kv_cache_usage],
    show: (x) => f.percent(x, 1),
    top: 1,
    offer: "kv_cache_usage_peak",
    why: (server) => (server.now?.window && !f.known(server.now.kv_cache_usage) ? server.now.gauges_withheld ? f.reason("engine_dead") : absent(server, "kv_cache_usage_peak") : null),
  },
  {
    id: "ttft",
    title: "TTFT mean ± jitter",
    unit: "seconds",
    lines: [
      line("at most", null), line("at most", null), line("at least", null), line("at least", null),
      line("60 s", "first"), line("1 s", "second", { dots: true }),
    ],
    bands: [{ series: [2, 1], colour: "band-high" }, { series: [4, 3], colour: "band-low" }],
    legend: [4, 5],
    data: (server, v) => {
      const mean = v.pick("ttft_mean_60s");
      const low = v.pick("ttft_jitter_lower_60s");
      const high = v.pick("ttft_jitter_upper_60s");
      return [v.x, spread(mean, high, -1), spread(mean, high, 1), spread(mean, low, -1), spread(mean, low, 1), mean, v.pick("ttft_mean")];
    },
    now: (server) => [null, null, null, null, server.now?.window?.ttft_mean, lastOf(server, "ttft_mean")],
    show: f.seconds,
    why: (server) => (server.now?.window && !f.known(server.now.window.ttft_mean) ? absent(server, "ttft_mean") : null),
  },
  {
    id: "itl",
    title: "Inter-token latency",
    unit: "seconds",
    lines: [line("1 s mean", "first")],
    data: (server, v) => [v.x, v.pick("itl_mean")],
    now: (server) => [lastOf(server, "itl_mean")],
    offer: "itl_mean",
    show: f.seconds,
    why: (server) => (server.now?.window && !f.known(server.now.window.itl_mean) ? absent(server, "itl_mean") : null),
  },
  {
    id: "preemptions",
    title: "Preemptions",
    unit: "count",
    lines: [line("in 1 s", "second", { bars: true })],
    data: (server, v) => [v.x, v.pick("preemptions")],
    now: (server) => [lastOf(server, "preemptions")],
    offer: "preemptions",
    show: f.count,
    least: 2,
    why: (server) => (server.now?.window && !f.known(server.now.window.preemptions) ? absent(server, "preemptions") : null),
  },
  {
    id: "prefix",
    title: "Prefix cache hits",
    unit: "ratio",
    lines: [line("of 60 s", "third", { fill: true })],
    data: (server, v) => [v.x, v.pick("prefix_hit_ratio_60s")],
    now: (server) => [server.now?.window?.prefix_hit_ratio],
    offer: "prefix_hit_ratio",
    show: (x) => f.percent(x, 1),
    top: 1,
    why: (server) => (server.now?.window && !f.known(server.now.window.prefix_hit_ratio) ? absent(server, "prefix_hit_ratio") : null),
  },
  {
    id: "tokens",
    title: "Tokens a second",
    unit: "rate",
    // Prompts come in thousands, answers word by word: on one scale the answers would lie on the ground.
    lines: [line("generated", "first"), line("prompt (right)", "second", { dash: [5, 3], right: true })],
    data: (server, v) => [v.x, v.pick("generation_tokens_per_second"), v.pick("prompt_tokens_per_second")],
    now: (server) => [lastOf(server, "generation_tokens_per_second"), lastOf(server, "prompt_tokens_per_second")],
    show: f.rate,
    least: 10,
    why: () => null,
  },
  {
    id: "memory",
    title: "GPU memory",
    unit: "gib",
    own: true,
    lines: [line("used", "third", { fill: true }), line("budget", "limit", { dash: [6, 4] })],
    data: (server, v, from, to) => {
      const m = memoryView(server, from, to);
      const budget = budgetOf(server);
      return [m.x, m.used, m.x.map(() => budget?.value ?? null)];
    },
    now: (server) => [usedOf(server)?.value, budgetOf(server)?.value],
    show: (x) => f.gib(x),
    why: (server) => (usedOf(server) === null ? server.facts?.attribution?.reason || "not known" : null),
  },
];

// A server that generates nothing: its prompts have the scale for themselves.
const PROMPTS = {
  ...CHARTS.find((spec) => spec.id === "tokens"),
  lines: [line("prompt", "second", { dash: [5, 3] })],
  data: (server, v) => [v.x, v.pick("prompt_tokens_per_second")],
  now: (server) => [lastOf(server, "prompt_tokens_per_second")],
};

// The newest row (while the page stands still: the newest one then), as long as it belongs to the present.
function lastOf(server, field) {
  const values = server.columns[field];
  if (!values?.length || !server.now?.window) return null;
  return values[(server.until === undefined ? values.length : lowerBound(server.t, server.until + 0.001)) - 1] ?? null;
}

// ------------------------------------------------------------------ one chart

// Charts of a server: without those whose metric it does not have (an encoder has no KV cache and no tokens between).
export function offered(server) {
  const absent = server.now?.window?.absent;
  if (absent) server.lacks = CHARTS.filter((spec) => spec.offer && absent[spec.offer] === "not_offered").map((spec) => spec.id);
  else if (!server.lacks && server.loaded) {
    // It does not answer now, and did not since this page was opened: its past says what it has.
    const silent = { kv: "kv_cache_usage", itl: "itl_mean", preemptions: "preemptions", prefix: "prefix_hit_ratio_60s" };
    const never = Object.keys(silent).filter((id) => !(server.columns[silent[id]] ?? []).some(f.known));
    if (server.t.length) server.lacks = never;
  }
  return CHARTS.filter((spec) => !server.lacks?.includes(spec.id)).map((spec) => (spec.id === "tokens" && server.lacks?.includes("itl") ? PROMPTS : spec));
}

const GIB_STEPS = [0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * 2 ** 30);
const HOUR = (u, splits) => splits.map((s) => {
  const at = u.valToPos(s, "x");
  return at < 22 || at > u.bbox.width / devicePixelRatio - 18 ? "" : f.clock(s);
});

export class Chart {
  constructor(spec, server, app) {
    this.spec = spec;
    this.moving = server;
    this.app = app;
    this.cursor = null;
    this.drawn = "";
    const shown = spec.legend ?? spec.lines.map((_, i) => i);
    this.values = new Map();
    const legend = el("span", { class: "legend" });
    for (const i of shown) {
      const l = spec.lines[i];
      const number = el("b", { "data-v": `${spec.id}.${i}` });
      this.values.set(i, number);
      legend.append(
        el("span", {}, el("i", { class: `key ${l.colour} ${l.dots ? "dots" : l.dash ? "dashed" : l.bars ? "bars" : "solid"}`, "aria-hidden": "true" }), `${l.label} `, number),
      );
    }
    this.note = el("p", { class: "why", hidden: true });
    this.plotArea = el("div", { class: "plot" }, this.note);
    this.node = el(
      "figure",
      { class: "chart", tabindex: "0", "aria-label": `${spec.title}, ${server.name}. Arrow keys read the values.`, "data-chart": spec.id, onkeydown: (event) => this.#key(event) },
      el("figcaption", {}, el("span", { class: "title" }, spec.title), legend),
      this.plotArea,
    );
  }

  get server() {
    return this.app.shown(this.moving);
  }

  #build(width) {
    const { spec, app } = this;
    const right = spec.lines.some((l) => l.right);
    const series = [{}];
    for (const l of spec.lines) {
      const stroke = l.colour ? colours[l.colour] : "transparent";
      const s = { label: l.label, stroke, scale: l.right ? "right" : "y", width: (l.width ?? 1) / 1, dash: l.dash, spanGaps: false, points: { show: () => false, size: 4, width: 0, fill: stroke, filter: isolated } };
      if (l.fill) s.fill = `${stroke}2e`;
      if (l.bars) {
        s.paths = uPlot.paths.bars({ size: [0.9, 6, 2], align: 0 });
        s.fill = stroke;
        s.points = { show: () => false, filter: () => null };
        s.width = 0;
      }
      if (l.dots) {
        s.paths = () => null;
        s.points = { show: true, size: 3.2, width: 0, fill: stroke };
      }
      if (!l.colour) s.points = { show: () => false, filter: () => null };
      series.push(s);
    }
    const axis = { stroke: colours.dim, font: "10px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: colours.grid, width: 1 } };
    const options = {
      width,
      height: HEIGHT,
      legend: { show: false },
      padding: [6, 6, 0, 0],
      scales: {
        x: { time: true, auto: false, range: (u, min, max) => [min, max] },
        y: { range: (u, min, max) => this.#range(max) },
        right: { range: (u, min, max) => this.#range(max) },
      },
      axes: [
        { ...axis, space: 56, size: 20, gap: 3, values: HOUR, incrs: [1, 2, 5, 10, 15, 20, 30, 60, 120, 300] },
        { ...axis, size: 46, gap: 4, space: 26, incrs: spec.unit === "gib" ? GIB_STEPS : undefined, values: (u, splits) => splits.map((s) => tick[spec.unit](s)) },
        ...(right ? [{ ...axis, scale: "right", side: 1, stroke: colours.second, grid: { show: false }, size: 42, gap: 4, space: 26, values: (u, splits) => splits.map((s) => tick[spec.unit](s)) }] : []),
      ],
      series,
      bands: (spec.bands ?? []).map((band) => ({ series: band.series, fill: colours[band.colour] })),
      cursor: {
        sync: { key: "vllmeter", scales: ["x", null] },
        drag: { x: true, y: false, setScale: false, dist: 5 },
        points: { size: 6, width: 1 },
        y: false,
        bind: { dblclick: () => () => { app.live(); return null; } },
      },
      hooks: {
        setCursor: [(u) => { this.cursor = u.cursor.idx ?? null; this.#legend(); }],
        setSelect: [(u) => {
          if (u.select.width > 4) app.select(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        drawClear: [(u) => this.#marks(u)],
      },
    };
    this.plot = new uPlot(options, [[], ...spec.lines.map(() => [])], this.plotArea);
    this.width = width;
    ALL.add(this);
  }

  #range(max) {
    const { top, least, unit } = this.spec;
    if (top) return [0, top];
    let high = f.known(max) && max > 0 ? max * 1.12 : 0;
    if (least) high = Math.max(high, least);
    if (!(high > 0)) high = unit === "seconds" ? 0.1 : unit === "gib" ? 2 ** 30 : 1;
    return [0, high];
  }

  // Runs shaded behind the lines; restarts and changes of settings as upright lines.
  #marks(u) {
    const { ctx, bbox } = u;
    const [from, to] = [u.scales.x.min, u.scales.x.max];
    if (!f.known(from)) return;
    const place = (t) => bbox.left + ((Math.min(Math.max(t, from), to) - from) / (to - from)) * bbox.width;
    ctx.save();
    for (const run of this.app.store.runs) {
      const end = run.ended ?? this.app.wall();
      if ((run.server && run.server !== this.server.name) || end < from || run.started > to) continue;
      ctx.fillStyle = colours.run;
      ctx.fillRect(place(run.started), bbox.top, Math.max(1, place(end) - place(run.started)), bbox.height);
    }
    ctx.strokeStyle = colours.event;
    ctx.setLineDash([3, 3]);
    ctx.lineWidth = devicePixelRatio;
    const facts = this.server.facts ?? {};
    for (const t of [facts.last_restart, facts.last_config_change]) {
      if (!f.known(t) || t < from || t > to) continue;
      ctx.beginPath();
      ctx.moveTo(place(t), bbox.top);
      ctx.lineTo(place(t), bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  update(shared, from, to) {
    const width = this.plotArea.clientWidth;
    if (width < 60) return;
    if (!this.plot) this.#build(width);
    else if (Math.abs(width - this.width) > 1) {
      this.plot.setSize({ width, height: HEIGHT });
      this.width = width;
    }
    this.data = this.spec.data(this.server, shared, from, to);
    this.plot.batch(() => {
      this.plot.setData(this.data, false);
      this.plot.setScale("x", { min: from, max: to });
    });
    const empty = this.data.slice(1, this.spec.own ? 2 : undefined).every((values) => values.every((v) => v === null));
    hide(this.note, !empty);
    if (empty) put(this.note, this.server.loading ? "loading …" : this.spec.why(this.server) ?? "no values in this time span");
    this.#legend();
  }

  #legend() {
    const now = this.spec.now(this.server);
    const at = this.cursor !== null && this.data?.[0]?.length ? this.cursor : null;
    for (const [i, node] of this.values) {
      const raw = at === null ? now[i] : this.data[i + 1][at];
      putValue(node, f.known(raw) ? this.spec.show(raw) : f.NONE, raw ?? null);
    }
  }

  #key(event) {
    if (!this.plot || !this.data?.[0].length) return;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60 }[event.key];
    if (!step) return;
    event.preventDefault();
    const x = this.data[0];
    const next = Math.min(x.length - 1, Math.max(0, (this.cursor ?? x.length) + step));
    for (const chart of ALL) chart.plot.setCursor({ left: chart.plot.valToPos(x[next], "x"), top: 10 }, true, false);
    const words = [...this.values].map(([i, node]) => `${this.spec.lines[i].label} ${node.textContent === f.NONE ? "not known" : node.textContent}`);
    this.app.say(`${f.clock(x[next])}: ${words.join(", ")}`);
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
    this.cursor = null;
    ALL.delete(this);
  }
}

// Points are drawn only where a value has no neighbour: a lone sample would be invisible as a line.
function isolated(u, i, show, gaps) {
  const values = u.data[i];
  const found = [];
  for (let k = 0; k < values.length; k++) {
    if (values[k] !== null && (values[k - 1] ?? null) === null && (values[k + 1] ?? null) === null) found.push(k);
  }
  return found.length ? found : null;
}
