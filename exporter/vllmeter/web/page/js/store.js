// What the page knows: servers, their rows of the last 15 minutes, GPUs, runs. No document, no network.

const KEPT = 900;
const KEPT_STILL = 3600; // seconds of rows while the page stands still, at most

// The dashboards give these names these colours (grafana/source/house.py); other names take the colours that are left,
// in the order of the configuration, as `build.py --servers` gives them.
const KNOWN = ["vllm-qwen3", "vllm-embed", "vllm-reranker", "vllm-chat", "vllm-m3"];
const COLOURS = 7;

export class Server {
  constructor(name) {
    this.name = name;
    this.colour = 0;
    this.now = null;
    this.facts = null;
    this.loaded = false; // history has been read
    this.loading = false;
    this.lastAt = -Infinity;
    this.t = []; // Unix seconds, one per row
    this.columns = {}; // field -> values, null = not known
    this.lastMemoryAt = -Infinity;
    this.memoryT = [];
    this.memory = [];
  }

  // Rows come as [monotonic time, values in the order of fields]. Times that are here already are passed over.
  append(rows, memory, fields, zero) {
    for (const row of rows) {
      if (row[0] <= this.lastAt) continue;
      this.lastAt = row[0];
      this.t.push(row[0] + zero);
      fields.forEach((field, i) => (this.columns[field] ??= []).push(row[i + 1]));
    }
    for (const [at, bytes] of memory) {
      if (at <= this.lastMemoryAt) continue;
      this.lastMemoryAt = at;
      this.memoryT.push(at + zero);
      this.memory.push(bytes);
    }
  }

  trim(before) {
    const old = lowerBound(this.t, before);
    if (old > 60) {
      this.t.splice(0, old);
      for (const values of Object.values(this.columns)) values.splice(0, old);
    }
    const oldMemory = lowerBound(this.memoryT, before);
    if (oldMemory > 60) {
      this.memoryT.splice(0, oldMemory);
      this.memory.splice(0, oldMemory);
    }
  }

  forget() {
    this.t = [];
    this.columns = {};
    this.memoryT = [];
    this.memory = [];
    this.lastAt = this.lastMemoryAt = -Infinity;
    this.loaded = false;
  }
}

export class Store {
  constructor() {
    this.servers = new Map();
    this.order = [];
    this.gpus = [];
    this.runs = [];
    this.alerts = null;
    this.host = {};
    this.wall = 0;
    this.zero = 0;
    this.fields = [];
    this.epoch = null;
    this.version = "";
    this.received = 0;
    this.keep = Infinity; // Unix seconds: rows from here on are being looked at
  }

  // Returns the gap that a new connection could not fill, in seconds; 0 = none.
  hello(document) {
    this.fields = document.fields;
    let gap = 0;
    if (!document.resumed) {
      if (this.epoch !== null && this.epoch !== document.epoch) {
        // Another process: its clock may be another, and it knows nothing of before.
        gap = document.wall - this.wall;
        for (const server of this.servers.values()) server.lastAt = server.lastMemoryAt = -Infinity;
      } else if (this.epoch !== null) {
        for (const server of this.servers.values()) server.forget();
      }
      for (const server of this.servers.values()) server.loaded = false;
    }
    this.epoch = document.epoch;
    this.tick(document);
    return gap;
  }

  tick(document) {
    this.wall = document.wall;
    this.zero = document.zero;
    this.version = document.version;
    this.gpus = document.gpus;
    this.runs = document.runs;
    this.alerts = document.alerts;
    this.host = document.host;
    this.received += 1;
    const names = [];
    const added = [];
    for (const item of document.servers) {
      names.push(item.name);
      let server = this.servers.get(item.name);
      if (!server) {
        server = new Server(item.name);
        this.servers.set(item.name, server);
        added.push(server);
      }
      server.now = item.now;
      if (item.facts) server.facts = item.facts;
      // Before the history is here rows are kept too: the two overlap, so nothing falls between them.
      server.append(item.rows ?? [], item.memory ?? [], this.fields, this.zero);
      server.trim(Math.min(this.wall - KEPT - 30, Math.max(this.keep, this.wall - KEPT_STILL)));
    }
    this.#paint(added);
    if (names.length !== this.order.length || names.some((name, i) => name !== this.order[i])) {
      this.order = names;
      for (const name of this.servers.keys()) if (!names.includes(name)) this.servers.delete(name);
    }
  }

  // A server keeps its colour for as long as it is here.
  #paint(added) {
    for (const server of added) server.colour = KNOWN.indexOf(server.name);
    const taken = new Set([...this.servers.values()].map((server) => server.colour));
    const all = Array.from({ length: COLOURS }, (_, i) => i);
    const free = all.filter((colour) => !taken.has(colour));
    const palette = free.length ? free : all;
    added.filter((server) => server.colour < 0).forEach((server, i) => { server.colour = palette[i % palette.length]; });
  }

  // History in front of (or instead of) the rows that came meanwhile.
  history(document) {
    for (const [name, data] of Object.entries(document.servers)) {
      const server = this.servers.get(name);
      if (!server) continue;
      const newer = { t: server.t, columns: server.columns, memoryT: server.memoryT, memory: server.memory };
      const older = new Server(name);
      older.append(data.rows, data.memory, document.fields, document.zero);
      const before = server.t.length ? lowerBound(newer.t, (older.t[0] ?? Infinity) - 0.0005) : 0;
      // rows from before a restart of the exporter, then its history, then what was pushed meanwhile
      const tail = newer.t.length ? Math.max(before, lowerBound(newer.t, (older.t[older.t.length - 1] ?? -Infinity) + 0.0005)) : 0;
      server.t = [...newer.t.slice(0, before), ...older.t, ...newer.t.slice(tail)];
      for (const field of this.fields) {
        const values = newer.columns[field] ?? [];
        server.columns[field] = [...values.slice(0, before), ...(older.columns[field] ?? []), ...values.slice(tail)];
      }
      const head = lowerBound(newer.memoryT, (older.memoryT[0] ?? Infinity) - 0.0005);
      const rest = Math.max(head, lowerBound(newer.memoryT, (older.memoryT[older.memoryT.length - 1] ?? -Infinity) + 0.0005));
      server.memoryT = [...newer.memoryT.slice(0, head), ...older.memoryT, ...newer.memoryT.slice(rest)];
      server.memory = [...newer.memory.slice(0, head), ...older.memory, ...newer.memory.slice(rest)];
      server.lastAt = Math.max(server.lastAt, older.lastAt);
      server.lastMemoryAt = Math.max(server.lastMemoryAt, older.lastMemoryAt);
      server.loaded = true;
      server.loading = false;
    }
  }
}

export function lowerBound(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
