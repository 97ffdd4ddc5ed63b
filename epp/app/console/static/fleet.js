// The fleet: a bar of all pods, a table of them, and one of them with its last decisions.

import { Bars } from "./bars.js";
import { count, el, facts, milliseconds, share, short } from "./dom.js";
import { brief } from "./decisions.js";
import { Table, filterOf } from "./table.js";

const MARKS = { ready: "●", partial: "◐", ejected: "✕", unreachable: "○", asleep: "☾" };

const number = (name, head, title, text, more = {}) => ({
  name, head, title, kind: "number", text: (row) => text(row[name]), key: (row) => row[name], ...more,
});

const part = (name, head, title, more = {}) =>
  number(name, head, title, share, { bar: (row) => row[name], kind: "number part", ...more });

const COLUMNS = [
  { name: "endpoint", head: "pod", kind: "text name", text: (row) => row.endpoint, key: (row) => row.endpoint, full: (row) => row.endpoint },
  {
    name: "state", head: "state", kind: "text", text: (row) => `${MARKS[row.state] ?? "?"} ${row.state}`,
    key: (row) => row.state, className: (row) => (row.state === "ready" || row.state === "partial" ? "" : "bad"),
  },
  number("report_age", "metrics", "Time since its metrics were read", (value) => (value === null ? "never" : milliseconds(1000 * value))),
  number("requests", "sent", "Requests that this picker sent there and has not seen end", count),
  number("running", "running", "Requests that run there", short),
  number("waiting", "waiting", "Requests that wait there", short),
  number("queued_prefill_ms", "prefill", "Prefill that is to be done there", milliseconds, { kind: "number part" }),
  part("room", "room used", "The fullest of its prefill, memory and slots; from 100 % on requests wait"),
  part("kv_usage", "KV in use", "The share of the KV cache that requests hold, as reported"),
  part("full", "cache filled", "How much of the cache holds what can be found again"),
  part("hits", "hits", "Tokens of prompts that the engine had cached, in the last minute"),
  part("error", "error", "By how much that differed from the prediction, as a share of the prompts"),
  number("trust", "trust", "How well recent predictions for its cache held, 0 to 1", (value) => value.toFixed(2)),
  number("prefill_tokens_per_second", "speed, tokens/s", "Prefill of a prompt of 1,000 tokens", short),
  number("answers", "answers", "Responses with usage, in the last minute", count),
];

const MEASURES = [
  { name: "queued_prefill_ms", words: "prefill to be done", text: milliseconds, least: 100 },
  { name: "requests", words: "requests sent", text: count, least: 4 },
  { name: "room", words: "room used", text: share, whole: 1, fills: true },
  { name: "kv_usage", words: "KV in use", text: share, whole: 1, fills: true },
  { name: "full", words: "cache filled", text: share, whole: 1 },
  { name: "hits", words: "hits of the last minute", text: share, whole: 1 },
  { name: "error", words: "error of the last minute", text: share, least: 0.1 },
];

export class FleetView {
  #measure = 0;

  constructor(node, state, details) {
    Object.assign(this, { state, details });
    this.choice = el(
      "select", { "aria-label": "What the bars show", on: { change: () => this.choose(this.choice.selectedIndex) } },
      ...MEASURES.map((each) => el("option", {}, each.words)),
    );
    this.sums = el("p", { class: "sums" });
    this.scale = el("span", { class: "quiet" });
    this.bars = new Bars({ pick: (row) => this.pick(row.endpoint) });
    this.filter = filterOf(this, "filter pods  (/)", "Filter pods");
    this.table = new Table({
      label: "Pods", columns: COLUMNS, sort: 0,
      id: (row) => row.endpoint,
      find: (row) => `${row.endpoint} ${row.target} ${row.state}`,
      open: (row) => this.pick(row.endpoint),
    });
    node.append(
      el("div", { class: "bar-head" }, el("label", {}, "Bars: ", this.choice), this.scale, this.sums),
      this.bars.node,
      el("div", { class: "tools" }, this.filter),
      this.table.node,
    );
  }

  choose(at) {
    this.#measure = (at + MEASURES.length) % MEASURES.length;
    this.choice.selectedIndex = this.#measure;
    this.draw();
  }

  nextMeasure() {
    this.choose(this.#measure + 1);
  }

  pick(endpoint) {
    this.table.select(endpoint);
    this.details.show(() => this.#details(endpoint), { narrow: true });
    this.draw();
  }

  draw() {
    if (!this.state.page) return;
    const rows = this.state.rows();
    const most = Math.max(100, ...rows.map((row) => row.queued_prefill_ms));
    COLUMNS.find((each) => each.name === "queued_prefill_ms").bar = (row) => row.queued_prefill_ms / most;
    this.table.show(rows);
    this.#drawBars(rows);
    const ready = rows.filter((row) => row.state === "ready").length;
    const sum = (name) => rows.reduce((all, row) => all + row[name], 0);
    const prompt = sum("prompt_tokens");
    this.sums.textContent =
      `${count(ready)} of ${count(rows.length)} pods ready · requests sent: ${count(sum("requests"))} · ` +
      `${milliseconds(sum("queued_prefill_ms"))} of prefill to be done · ` +
      `${prompt ? share(sum("cached_prompt_tokens") / prompt) : "–"} of prompts cached since the start`;
  }

  #drawBars(rows) {
    const measure = MEASURES[this.#measure];
    const shown = rows.toSorted((a, b) => (a.endpoint < b.endpoint ? -1 : 1));
    const values = shown.map((row) => row[measure.name]).filter((value) => value !== null);
    const most = measure.whole ?? Math.max(measure.least, ...values);
    this.scale.textContent = `full height: ${measure.text(most)}`;
    const highest = values.length ? measure.text(Math.max(...values)) : "–";
    this.bars.show(shown, {
      value: (row) => (row[measure.name] === null ? null : row[measure.name] / most),
      told: (row) => `${row.endpoint} · ${row.state} · ${measure.words}: ${measure.text(row[measure.name])}`,
      label: `${rows.length} pods by ${measure.words}; the highest is ${highest}. The table has all values.`,
      selected: this.table.selected,
      absolute: measure.whole !== undefined && measure.fills,
    });
  }

  #details(endpoint) {
    const row = this.state.rows().find((each) => each.endpoint === endpoint);
    if (!row) return [el("h2", {}, endpoint), el("p", {}, "This pod is gone.")];
    const told = [
      ...COLUMNS.slice(1).map((column) => [column.head, column.text(row), column.title]),
      ["address", row.target],
      ["cache", `${short(row.cached_tokens)} of ${short(row.cache_tokens)} tokens`],
      ["KV events", row.events_live ? "followed" : "none"],
    ];
    const last = [...this.state.decisions.values()].filter((each) => each.endpoint === endpoint).slice(-12).reverse();
    return [
      el("h2", {}, endpoint),
      facts(told),
      el("h3", {}, `Its last decisions (${last.length})`),
      last.length ? brief(last, (each) => this.details.explain(each)) : el("p", { class: "quiet" }, "None of those that this page has seen."),
    ];
  }
}
