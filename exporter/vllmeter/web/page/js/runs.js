// Runs: what is going on, start and stop from here; and a recording for a bug report.

import { $, el, put, save } from "./dom.js";
import * as f from "./format.js";

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  if (!answer.ok) {
    const text = await answer.text();
    throw new Error(text.startsWith("{") ? JSON.stringify(JSON.parse(text).detail) : text.trim());
  }
  return answer;
}

export class Runs {
  constructor(app) {
    this.app = app;
    this.node = $("runs");
    this.dialog = $("run-dialog");
    this.items = new Map();
    $("start-run").addEventListener("click", () => this.#open());
    $("run-cancel").addEventListener("click", () => this.dialog.close());
    $("run-form").addEventListener("submit", (event) => { event.preventDefault(); this.#start(); });
    $("record").addEventListener("click", () => this.#record());
  }

  #open() {
    const select = $("run-server");
    select.replaceChildren(el("option", { value: "", text: "all" }), ...this.app.store.order.map((name) => el("option", { value: name, text: name })));
    put($("run-error"), "");
    this.dialog.showModal();
    $("run-name").focus();
  }

  async #start() {
    try {
      await post("api/runs", { run: $("run-name").value, scenario: $("run-scenario").value, server: $("run-server").value, action: "start" });
      this.dialog.close();
    } catch (error) {
      put($("run-error"), error.message);
    }
  }

  async #stop(run) {
    try {
      await post("api/runs", { run: run.run, scenario: run.scenario, server: run.server, action: "stop" });
    } catch (error) {
      this.app.notice("run", `The run could not be stopped: ${error.message}`);
    }
  }

  async #record() {
    const button = $("record");
    const lasting = 30;
    button.disabled = true;
    const began = performance.now();
    const clock = setInterval(() => put(button, `Recording … ${Math.max(0, Math.ceil(lasting - (performance.now() - began) / 1000))} s`), 250);
    try {
      const answer = await post("api/recording", { seconds: lasting });
      save(await answer.blob(), "vllmeter-report.vmrec", "application/octet-stream");
      this.app.notice("record", "The recording is saved. Keys, hosts and home folders are masked; look at it before you share it: xzcat FILE | less", 20000);
    } catch (error) {
      this.app.notice("record", `No recording: ${error.message}`, 20000);
    } finally {
      clearInterval(clock);
      button.disabled = false;
      put(button, "Record");
    }
  }

  update() {
    const { store } = this.app;
    const active = store.runs.filter((run) => run.ended === null);
    this.node.hidden = !active.length;
    const seen = new Set();
    for (const run of active) {
      const id = `${run.run} ${run.server}`;
      seen.add(id);
      let item = this.items.get(id);
      if (!item) {
        const time = el("b");
        const button = el("button", { type: "button", onclick: () => this.#stop(run) }, "Stop");
        button.setAttribute("aria-label", `Stop run ${run.run}`);
        item = { time, node: el("p", { class: "run" }, el("i", { class: "swatch run", "aria-hidden": "true" }), el("span", { text: `Run ${run.run} (${run.scenario}) on ${run.server || "all servers"}` }), time, button) };
        this.items.set(id, item);
        this.node.append(item.node);
      }
      put(item.time, f.span(store.wall - run.started));
    }
    for (const [id, item] of this.items) {
      if (!seen.has(id)) {
        item.node.remove();
        this.items.delete(id);
      }
    }
  }
}
