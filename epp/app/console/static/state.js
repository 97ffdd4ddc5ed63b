// What the picker said, and what this page remembers of it: a minute of the fleet, a quarter of an
// hour of totals, the last decisions. The picker keeps nothing for this page.

const WINDOW_MS = 60_000;
const MOST_POINTS = 900;
const MOST_DECISIONS = 600;
const COUNTED = ["responses", "prompt_tokens", "cached_prompt_tokens", "error_tokens"];

export class State {
  page = null;
  points = [];
  decisions = new Map();
  missed = 0;
  #started = "";
  #earlier = [];
  #last = 0;

  take(page) {
    if (page.started !== this.#started) this.#forget(page);
    this.page = page;
    this.#remember(page);
    this.#follow(page.recent, page.decisions);
    this.#end(page.ended);
  }

  /** What is asked for next: decisions after the last one, and those that have ended since. */
  get query() {
    return this.page ? { since: this.#last, ended: this.page.at_ms } : {};
  }

  #forget(page) {
    this.#started = page.started;
    this.points = [];
    this.decisions.clear();
    this.#earlier = [];
    this.#last = Math.max(0, page.decisions - page.recent.number.length);
    this.missed = 0;
  }

  #remember(page) {
    const fleet = page.endpoints;
    const places = new Map(fleet.endpoint.map((name, at) => [name, at]));
    const counts = Object.fromEntries(COUNTED.map((name) => [name, fleet[name]]));
    this.#earlier.push({ at: page.at_ms, places, counts });
    while (page.at_ms - this.#earlier[0].at > WINDOW_MS) this.#earlier.shift();
    this.points.push({ at: page.at_ms, decisions: page.decisions, ...page.totals, ...gauges(page) });
    if (this.points.length > MOST_POINTS) this.points.shift();
  }

  #follow(recent, number) {
    for (const row of rowsOf(recent)) this.decisions.set(row.number, row);
    const first = recent.number.length ? recent.number[0] : number + 1;
    if (first > this.#last + 1) this.missed += first - this.#last - 1;
    this.#last = number;
    for (const each of this.decisions.keys()) {
      if (this.decisions.size <= MOST_DECISIONS) break;
      this.decisions.delete(each);
    }
  }

  #end(ended) {
    const running = new Map();
    for (const row of this.decisions.values()) if (row.outcome === null) running.set(row.request, row);
    // Of several workers each has numbers of its own there.
    for (const row of rowsOf(ended)) {
      const known = running.get(row.request);
      if (known) Object.assign(known, row, { number: known.number });
    }
  }

  /** The rows of the fleet, with what responses said in the last minute. */
  rows() {
    const fleet = this.page.endpoints;
    const before = this.#earlier[0];
    const several = this.#earlier.length > 1;
    return fleet.endpoint.map((endpoint, at) => {
      const row = { endpoint, at };
      for (const name in fleet) row[name] = fleet[name][at];
      const place = several ? before.places.get(endpoint) : undefined;
      const since = (name) => {
        const was = place === undefined ? 0 : before.counts[name][place];
        return fleet[name][at] >= was ? fleet[name][at] - was : fleet[name][at];
      };
      const prompt = since("prompt_tokens");
      row.answers = since("responses");
      row.hits = prompt ? since("cached_prompt_tokens") / prompt : null;
      row.error = prompt ? since("error_tokens") / prompt : null;
      row.full = row.cache_tokens ? row.cached_tokens / row.cache_tokens : null;
      return row;
    });
  }

  /** Decisions a second, over the last points. */
  get rate() {
    const last = this.points.at(-1);
    const first = this.points.at(-6) ?? this.points[0];
    if (!last || last.at <= first.at) return null;
    return (1e3 * (last.decisions - first.decisions)) / (last.at - first.at);
  }
}

function rowsOf(decisions) {
  const columns = Object.entries(decisions);
  return decisions.number.map((_, at) => Object.fromEntries(columns.map(([name, column]) => [name, column[at]])));
}

function gauges(page) {
  const fleet = page.endpoints;
  const sum = (column) => column.reduce((all, each) => all + each, 0);
  const ended = rowsOf(page.ended).filter((row) => row.predicted_ttft_ms !== null && row.ttft_ms !== null);
  return {
    queued: sum(fleet.queued_prefill_ms),
    running: sum(fleet.running),
    waiting: page.waiting.requests,
    predictedTtft: median(ended.map((row) => row.predicted_ttft_ms)),
    ttft: median(ended.map((row) => row.ttft_ms)),
  };
}

export function median(values) {
  if (!values.length) return null;
  return values.toSorted((a, b) => a - b)[values.length >> 1];
}
