// Puts the page together: connection -> store -> what is on the screen, at most one drawing per frame.

import { Budgets } from "./budgets.js";
import { Cards } from "./cards.js";
import { readColours } from "./charts.js";
import { $, attr, el, hide, put } from "./dom.js";
import * as f from "./format.js";
import { Gpus } from "./gpus.js";
import { Runs } from "./runs.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";
import { Summary } from "./summary.js";

class App {
  constructor() {
    this.store = new Store();
    this.span = null; // null: as much of 15 minutes as there is
    this.fixed = null; // {from, to} while paused or zoomed
    this.still = null; // what was known then
    this.drawnWall = 0;
    this.drawnView = "";
    this.notices = new Map();
    readColours();
    this.gpus = new Gpus(this);
    this.cards = new Cards(this);
    this.budgets = new Budgets(this);
    this.summary = new Summary(this);
    this.runs = new Runs(this);
    this.#controls();
    this.stream = new Stream({
      hello: (data, away) => this.#hello(data, away),
      tick: (data) => { this.store.tick(data); this.draw(); },
      state: (state, lost) => this.#connection(state, lost),
    });
    this.stream.open();
  }

  // ---------------------------------------------------------------- data

  #hello(data, away) {
    const gap = this.store.hello(data);
    if (away !== null) {
      if (gap > 0) this.notice("resumed", `The exporter was started again: nothing is known of ${f.span(gap)} before ${f.clock(data.wall)}.`, 30000);
      else this.notice("resumed", `The connection was away for ${f.span(away)}. What was missed has been filled in: no hole.`, 12000);
    }
    this.draw();
  }

  // Histories of all cards that can be seen, in one request.
  async #load(cards) {
    const names = cards.map((card) => card.server.name);
    for (const card of cards) card.server.loading = true;
    try {
      const answer = await fetch(`api/history?${names.map((name) => `server=${encodeURIComponent(name)}`).join("&")}`);
      if (!answer.ok) throw new Error(String(answer.status));
      this.store.history(await answer.json());
    } catch {
      setTimeout(() => { for (const card of cards) card.server.loading = false; this.draw(); }, 2000);
      return;
    }
    this.drawnView = "";
    this.draw();
  }

  // ---------------------------------------------------------------- standing still

  #hold() {
    if (this.still) return;
    const { store } = this;
    // Each looks like its server, but for what was new when the page stopped.
    const held = (server) => Object.assign(Object.create(server), { now: server.now, facts: server.facts, until: store.wall });
    this.still = { wall: store.wall, gpus: store.gpus, bad: this.#bad().length, servers: new Map([...store.servers].map(([name, server]) => [name, held(server)])) };
  }

  // A server as the page shows it.
  shown(server) {
    const held = this.still?.servers.get(server.name);
    return held && Object.getPrototypeOf(held) === server ? held : server;
  }

  wall() {
    return this.still?.wall ?? this.store.wall;
  }

  #bad() {
    return this.store.order.filter((name) => (f.STATES[this.store.servers.get(name).now?.state] ?? [])[2] === "bad");
  }

  // For those who listen to the page.
  say(text) {
    put($("said"), text);
  }

  // ---------------------------------------------------------------- time span

  range() {
    return this.fixed ?? { from: this.store.wall - this.shownSpan(), to: this.store.wall };
  }

  // A quarter of an hour, unless the exporter has only just begun to watch.
  shownSpan() {
    if (this.span !== null) return this.span;
    const servers = [...this.store.servers.values()].filter((server) => server.loaded && server.t.length);
    const known = Math.max(0, ...servers.map((server) => this.store.wall - server.t[0]));
    return servers.length ? [60, 300].find((span) => known < span * 0.9) ?? 900 : 900;
  }

  select(from, to) {
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    if (high - low < 1) return;
    this.#hold();
    this.fixed = { from: low, to: high };
    this.store.keep = Math.min(this.store.keep, low - 5);
    this.summary.show(low, high);
    this.draw();
  }

  live() {
    this.fixed = null;
    this.still = null;
    this.store.keep = Infinity;
    this.summary.hide();
    this.draw();
  }

  pause(on) {
    if (on) {
      const { from, to } = this.range();
      this.#hold();
      this.fixed = { from, to };
      this.store.keep = from - 5;
      this.draw();
    } else this.live();
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.#draw(); });
  }

  #draw() {
    const { store } = this;
    if (!store.received) return;
    const { from, to } = this.range();
    const moved = `${from} ${to} ${store.fields.length}`;
    const changed = this.fixed === null || moved !== this.drawnView;
    this.drawnView = moved;
    put($("version"), store.version);
    this.cards.sync();
    const visible = this.cards.visible();
    const wanting = visible.filter((card) => card.open && !card.server.loaded && !card.server.loading);
    if (wanting.length) this.#load(wanting);
    for (const card of visible) card.update(from, to, changed);
    this.gpus.update();
    this.budgets.update();
    this.runs.update();
    this.#alerts();
    this.#host();
    const span = this.shownSpan();
    attr($("pause"), "aria-pressed", String(this.fixed !== null));
    put($("pause"), this.fixed !== null ? "Go on" : "Pause");
    for (const button of document.querySelectorAll("[data-span]")) attr(button, "aria-pressed", String(this.fixed === null && Number(button.dataset.span) === span));
    document.body.dataset.wall = String(store.wall);
    put($("clock"), f.clock(this.wall()));
    this.#problems();
  }

  // What goes wrong is said at once, also while the page stands still or is in the background.
  #problems() {
    const bad = this.#bad();
    document.title = bad.length ? `(${bad.length}) vllmeter` : "vllmeter";
    const fresh = this.bad ? bad.filter((name) => !this.bad.includes(name)) : [];
    if (fresh.length) this.say(fresh.map((name) => { const { now } = this.store.servers.get(name); return `${name}: ${f.STATES[now.state][1]}, ${now.reason}`; }).join("; "));
    this.bad = bad;
    hide($("standing"), this.still === null);
    hide($("clock"), this.still !== null);
    if (this.still === null) return;
    const more = bad.length - this.still.bad;
    put($("standing"), `❚❚ figures of ${f.clock(this.still.wall)}${more > 0 ? `; since then ${more} server${more > 1 ? "s" : ""} got a problem` : ""}`);
    attr($("standing"), "class", `pill ${more > 0 ? "bad" : "wait"}`);
  }

  #connection(state, lost) {
    const node = $("connection");
    const words = {
      connecting: ["◌ connecting …", "wait"],
      live: ["● live", "good"],
      asleep: ["☾ in the background", "wait"],
      late: ["◔ no news for some seconds", "warn"],
      lost: [`✕ connection lost ${f.span(lost)} ago, trying again`, "bad"],
    };
    const [text, tone] = words[state];
    put(node, text);
    attr(node, "class", `pill ${tone}`);
    document.body.classList.toggle("lost", state === "lost");
  }

  #host() {
    const { host } = this.store;
    if (!host.nvml_up && host.nvml_reason) this.notice("nvml", `GPU readings are not available: ${host.nvml_reason}`);
    else this.unnotice("nvml");
    if (host.config_ok === false) this.notice("config", `The configuration file was not taken over: ${host.config_error ?? ""}`);
    else this.unnotice("config");
  }

  #alerts() {
    const { alerts } = this.store;
    const node = $("alerts");
    const key = JSON.stringify(alerts);
    if (this.alertsKey === key) return;
    this.alertsKey = key;
    const shown = alerts && (!alerts.reachable || alerts.firing.length);
    hide(node, !shown);
    if (!shown) return;
    if (!alerts.reachable) {
      node.replaceChildren(el("p", { class: "dim", text: `Alerts are not known: ${alerts.reason}` }));
      return;
    }
    node.replaceChildren(
      el("h2", { text: `${alerts.firing.length + alerts.more} firing alert${alerts.firing.length + alerts.more > 1 ? "s" : ""}` }),
      el("ul", {}, ...alerts.firing.map((alert) => el("li", {},
        el("span", { class: `pill ${{ critical: "bad", info: "wait" }[alert.severity] ?? "warn"}`, text: `${alert.severity === "info" ? "ℹ" : "▲"} ${alert.severity || "firing"}` }),
        alert.runbook ? el("a", { href: alert.runbook, target: "_blank", rel: "noopener noreferrer", title: "Runbook" }, el("b", { text: alert.name })) : el("b", { text: alert.name }),
        alert.server ? el("span", { text: alert.server }) : null,
        el("span", { class: "dim", text: alert.summary || alert.description, title: alert.description || null }),
      ))),
    );
  }

  notice(id, text, lasting = 0) {
    let notice = this.notices.get(id);
    if (!notice) {
      const words = el("span");
      const node = el("p", { class: "notice" }, words, el("button", { type: "button", class: "link", "aria-label": "Close this message", onclick: () => this.unnotice(id) }, "✕"));
      notice = { words, node };
      this.notices.set(id, notice);
      $("notices").append(node);
    }
    put(notice.words, text);
    clearTimeout(notice.timer);
    if (lasting) notice.timer = setTimeout(() => this.unnotice(id), lasting);
  }

  unnotice(id) {
    this.notices.get(id)?.node.remove();
    this.notices.delete(id);
  }

  // ---------------------------------------------------------------- controls

  #controls() {
    for (const button of document.querySelectorAll("[data-span]")) {
      button.addEventListener("click", () => { this.span = Number(button.dataset.span); this.live(); });
    }
    $("pause").addEventListener("click", () => this.pause(this.fixed === null));
    $("pick").addEventListener("click", () => {
      const { from, to } = this.range();
      this.select(this.fixed ? from : Math.max(from, to - 60), to);
      this.summary.from.focus();
    });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const label = () => put($("theme"), isDark() ? "☀" : "☾");
    label();
    const recolour = () => { label(); readColours(); this.cards.rebuild(); this.drawnView = ""; this.draw(); };
    dark.addEventListener("change", recolour);
    $("theme").addEventListener("click", () => {
      const next = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try {
        localStorage.setItem("vllmeter-theme", next);
      } catch {
        // not kept, that is all
      }
      recolour();
    });
    addEventListener("keydown", (event) => {
      if (event.target.closest("input, select, textarea, dialog")) {
        return;
      }
      if (event.key === "Escape" && this.fixed) this.live();
      else if (event.key === " " && !event.target.closest("button, a, summary")) {
        event.preventDefault();
        this.pause(this.fixed === null);
      } else if (event.key === "/") {
        event.preventDefault();
        $("filter").focus();
      }
    });
    let sized = 0;
    new ResizeObserver(() => {
      clearTimeout(sized);
      sized = setTimeout(() => { this.drawnView = ""; this.draw(); }, 120);
    }).observe($("cards"));
    document.addEventListener("visibilitychange", () => this.draw());
    // Paper is white, and has all cards.
    let before = null;
    const paint = (theme) => {
      if (theme === undefined) delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      readColours();
      this.cards.rebuild();
      this.drawnView = "";
    };
    addEventListener("beforeprint", () => {
      before = { theme: document.documentElement.dataset.theme };
      paint("light");
      this.cards.fillAll();
      this.#draw();
    });
    addEventListener("afterprint", () => {
      if (before === null) return;
      paint(before.theme);
      before = null;
      this.draw();
    });
    setInterval(() => this.store.received && this.fixed === null && this.stream.now !== "live" && this.draw(), 1000);
  }
}

globalThis.vllmeter = new App();
