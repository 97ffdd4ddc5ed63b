// Decisions as they happen.

import { clockMs, count, el, milliseconds, share } from "./dom.js";
import { Table, filterOf } from "./table.js";

const error = (row) => (row.cached === null ? null : row.predicted_cached - row.cached);

function signed(value) {
  if (value === null) return "–";
  return value === 0 ? "0" : `${value > 0 ? "+" : "−"}${count(Math.abs(value))}`;
}

const became = (row) => {
  if (row.outcome === null) return "… runs";
  if (row.status !== null && row.status >= 400) return `✕ ${row.status}`;
  const mark = { completed: `✓ ${row.status ?? ""}`, unobserved: `✓ ${row.status ?? ""}, end not seen` };
  return mark[row.outcome] ?? `✕ ${row.outcome}`;
};

const number = (name, head, title, text) => ({ name, head, title, kind: "number", text: (row) => text(row[name]), key: (row) => row[name] });

const COLUMNS = [
  { name: "at", head: "time", kind: "text", text: (row) => clockMs(row.at_ms), key: (row) => row.number },
  { name: "request", head: "request", kind: "text name", text: (row) => row.client_id || row.request, key: (row) => row.client_id || row.request, full: (row) => `${row.client_id} ${row.request}` },
  { name: "model", head: "model", kind: "text name", text: (row) => row.model, key: (row) => row.model, full: (row) => row.model },
  { name: "endpoint", head: "pod", kind: "text name", text: (row) => row.endpoint, key: (row) => row.endpoint, full: (row) => row.endpoint },
  number("prompt_tokens", "prompt", "Tokens of the prompt", count),
  {
    name: "predicted_cached", head: "predicted cached", title: "Tokens of it that the cache there was predicted to serve", kind: "number part",
    text: (row) => count(row.predicted_cached), key: (row) => row.predicted_cached,
    bar: (row) => (row.prompt_tokens ? row.predicted_cached / row.prompt_tokens : 0),
  },
  {
    name: "cached", head: "cached", title: "As the engine reported", kind: "number part", text: (row) => count(row.cached), key: (row) => row.cached,
    bar: (row) => (row.prompt_tokens && row.cached ? row.cached / row.prompt_tokens : 0),
  },
  { name: "error", head: "off by", title: "Predicted less reported", kind: "number", text: (row) => signed(error(row)), key: (row) => (error(row) === null ? null : Math.abs(error(row))) },
  number("predicted_ttft_ms", "predicted TTFT", "The predicted time to the first token", milliseconds),
  number("ttft_ms", "TTFT", "From the request's first bytes to the first ones of a streamed response", milliseconds),
  number("duration_ms", "in all", "From its first bytes to its end", milliseconds),
  { name: "outcome", head: "became", kind: "text", text: became, key: became, className: (row) => (became(row).startsWith("✕") ? "bad" : "") },
];

export class DecisionsView {
  constructor(node, state, details) {
    this.state = state;
    this.filter = filterOf(this, "filter by id, model, pod  (/)", "Filter decisions");
    this.note = el("span", { class: "quiet" });
    this.table = new Table({
      label: "Decisions", columns: COLUMNS, sort: 0, reverse: true, still: true,
      id: (row) => row.number,
      find: (row) => `${row.request} ${row.client_id} ${row.model} ${row.endpoint} ${became(row)}`,
      open: (row) => details.explain(row),
    });
    node.append(el("div", { class: "tools" }, this.filter, this.note), this.table.node);
  }

  draw() {
    const rows = [...this.state.decisions.values()];
    this.table.show(rows);
    const missed = this.state.missed ? ` ${count(this.state.missed)} came too fast to be shown.` : "";
    const above = this.table.above ? ` ${count(this.table.above)} above: Esc goes to the newest.` : "";
    this.note.textContent = `The last ${count(rows.length)} that this page has seen; Enter says why.${above}${missed}`;
  }
}

/** Return decisions as a short table, each of which opens. */
export function brief(rows, open) {
  const line = (row) =>
    el(
      "tr", {},
      el("td", {}, el("button", { class: "link", on: { click: () => open(row) } }, clockMs(row.at_ms))),
      el("td", { class: "number" }, count(row.prompt_tokens)),
      el("td", { class: "number" }, count(row.predicted_cached)),
      el("td", { class: "number" }, count(row.cached)),
      el("td", { class: "number" }, row.prompt_tokens && row.cached !== null ? share(row.cached / row.prompt_tokens) : "–"),
      el("td", { class: "number" }, milliseconds(row.ttft_ms)),
      el("td", {}, became(row)),
    );
  const heads = ["time", "prompt", "predicted cached", "cached", "", "TTFT", "became"].map((head, at) => el("th", { scope: "col", class: at && at < 6 ? "number" : "" }, head));
  return el("table", { class: "brief" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows.map(line)));
}
