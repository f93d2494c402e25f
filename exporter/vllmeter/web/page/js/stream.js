// The connection: server-sent events, reconnection without a hole, and a word about how it stands.

const LATE = 3500; // ms without an event
const DEAD = 9000; // ms without an event: open a new connection

// A browser keeps six connections to one host: tabs that nobody looks at give theirs back, and fetch what they missed.
const SLEEP = 10000; // ms in the background

export class Stream {
  constructor({ hello, tick, state }) {
    this.callbacks = { hello, tick, state };
    this.lastId = "";
    this.tries = 0;
    this.source = null;
    this.heard = 0;
    this.lostAt = null;
    this.now = "connecting";
    this.asleep = false;
    this.sleepAfter = SLEEP;
    document.addEventListener("visibilitychange", () => this.#seen());
    setInterval(() => this.#watch(), 500);
    addEventListener("online", () => this.#again(0));
  }

  #seen() {
    clearTimeout(this.drowsy);
    if (document.hidden) this.drowsy = setTimeout(() => this.#sleep(), this.sleepAfter);
    else if (this.asleep) this.open();
  }

  #sleep() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.asleep = true;
    this.#say("asleep");
  }

  open() {
    this.asleep = false;
    this.source?.close();
    const source = new EventSource(`api/stream${this.lastId ? `?since=${encodeURIComponent(this.lastId)}` : ""}`);
    this.source = source;
    this.heard = performance.now();
    source.addEventListener("hello", (event) => this.#take(source, event, true));
    source.addEventListener("tick", (event) => this.#take(source, event, false));
    // The browser would try again by itself, but not after an HTTP error, and without our since.
    source.onerror = () => this.#lost(source);
  }

  #take(source, event, hello) {
    if (source !== this.source) return;
    const data = JSON.parse(event.data);
    this.heard = performance.now();
    const away = this.lostAt === null ? null : (this.heard - this.lostAt) / 1000;
    this.lastId = event.lastEventId || data.id;
    if (hello) {
      this.tries = 0;
      this.lostAt = null;
      this.callbacks.hello(data, away);
    } else this.callbacks.tick(data);
    this.#say("live");
  }

  #lost(source) {
    if (source !== this.source) return;
    source.close();
    this.source = null;
    if (this.lostAt === null) this.lostAt = performance.now();
    this.tries += 1;
    this.#again(Math.min(5000, 500 * 2 ** (this.tries - 1)));
  }

  #again(wait) {
    if (this.source !== null || this.asleep) return;
    clearTimeout(this.timer);
    this.retryAt = performance.now() + wait;
    this.#say("lost");
    this.timer = setTimeout(() => this.open(), wait);
  }

  #watch() {
    if (this.asleep) return;
    const silent = performance.now() - this.heard;
    if (this.source === null) {
      this.#say("lost");
    } else if (silent > DEAD) {
      if (this.lostAt === null) this.lostAt = this.heard;
      this.#lost(this.source);
    } else if (silent > LATE && this.now === "live") this.#say("late");
  }

  #say(state) {
    this.now = state;
    this.callbacks.state(state, this.lostAt === null ? 0 : (performance.now() - this.lostAt) / 1000);
  }
}
