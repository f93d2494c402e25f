// Numbers and times as people read them. null and undefined are "–": not known is never 0.

export const NONE = "–";
const GIB = 2 ** 30;

export const known = (value) => value !== null && value !== undefined;

// Two decimals; exact ties to the even digit, as `vllmeter check` prints them (2.125 is common: sizes are whole MiB).
export function two(value) {
  const scaled = value * 100;
  const whole = Math.floor(scaled);
  return scaled - whole === 0.5 ? ((whole % 2 ? whole + 1 : whole) / 100).toFixed(2) : value.toFixed(2);
}

export function gib(value) {
  return known(value) ? `${two(value / GIB)} GiB` : NONE;
}

export function quantity(q, format = gib) {
  return q && known(q.value) ? `${q.estimate ? "~" : ""}${format(q.value)}` : NONE;
}

export function bare(q) {
  return q && known(q.value) ? `${q.estimate ? "~" : ""}${two(q.value / GIB)}` : NONE;
}

export function seconds(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  if (size < 0.001) return `${trim(value * 1e6)} µs`;
  if (size < 1) return `${trim(value * 1000)} ms`;
  return `${trim(value)} s`;
}

function trim(value) {
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(2);
}

export function interval(pair) {
  if (!pair || !known(pair[0]) || !known(pair[1])) return NONE;
  const [low, high] = [seconds(pair[0]), seconds(pair[1])];
  if (low === high) return low;
  const unit = high.slice(high.indexOf(" "));
  return low.endsWith(unit) ? `${low.slice(0, -unit.length)}–${high}` : `${low} – ${high}`;
}

export function percent(value, digits = 0) {
  return known(value) ? `${(value * 100).toFixed(digits)} %` : NONE;
}

export function count(value) {
  if (!known(value)) return NONE;
  return Number.isInteger(value) ? value.toLocaleString("en-US") : value.toFixed(1);
}

export function rate(value) {
  if (!known(value)) return NONE;
  if (value >= 10000) return `${(value / 1000).toFixed(1)} k`;
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(value === 0 ? 0 : 2);
}

export function span(value) {
  if (!known(value)) return NONE;
  const whole = Math.max(0, Math.round(value));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function clock(unix) {
  if (!known(unix)) return NONE;
  const d = new Date(unix * 1000);
  return [d.getHours(), d.getMinutes(), d.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
}

const REASONS = {
  not_offered: "this server does not offer it",
  engine_dead: "the engine is dead: its gauges are frozen",
  no_requests: "no requests in the window",
  no_queries: "no lookups in the window",
  too_few_requests: "too few requests",
  bounds_too_wide: "bounds too wide for one number",
  no_earlier_sample: "no earlier sample yet",
  no_samples: "no samples",
  gap: "a gap in the samples",
  inconsistent: "the server's figures contradict each other",
  several_processes: "several processes answer at one address",
  unstable_counters: "the counters restart all the time",
  restart_without_reset: "restarted without a reset of its counters",
  unusable_bounds: "unusable histogram bounds",
};

export function reason(code) {
  return code ? (REASONS[code] ?? code.replaceAll("_", " ")) : "not known";
}

export const STATES = {
  ready: ["○", "ready", "good"],
  busy: ["●", "busy", "good"],
  starting: ["◐", "starting", "wait"],
  sleeping: ["☾", "asleep", "wait"],
  late: ["◔", "late", "warn"],
  stale_gauges: ["≈", "stale gauges", "warn"],
  unknown_progress: ["?", "progress unknown", "warn"],
  failing: ["✕", "failing", "bad"],
  stuck: ["■", "stuck", "bad"],
  engine_dead: ["✕", "engine dead", "bad"],
  gone: ["✕", "gone", "bad"],
};
