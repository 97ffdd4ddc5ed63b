// How predictions held, and what was reused, over the time that this page was open.

import { Chart } from "./charts.js";
import { el, milliseconds, share, short } from "./dom.js";
import { median } from "./state.js";

const STEP_MS = 5_000;
const NO_USAGE = "No response told its cached tokens: they had no usage, or were not observed to their end (--observe-responses).";

const CHARTS = [
  {
    title: "Prediction error", note: "cached tokens, predicted less reported, as a share of the prompts; the bias is the same with its sign",
    text: share, least: 0.05, empty: NO_USAGE,
    lines: [
      { name: "error", value: (point) => point.error },
      { name: "bias", value: (point) => point.bias },
    ],
  },
  {
    title: "Reuse", note: "tokens of prompts that were cached: somewhere, where they went, and as the engines reported",
    text: share, least: 0.2, empty: NO_USAGE,
    lines: [
      { name: "available", value: (point) => point.available },
      { name: "captured", value: (point) => point.captured },
      { name: "delivered", value: (point) => point.delivered },
    ],
  },
  {
    title: "Time to first token", note: "medians of the streamed responses that this page has seen",
    text: milliseconds, least: 10, empty: "No streamed response has begun.",
    lines: [
      { name: "seen", value: (point) => point.ttft },
      { name: "predicted", value: (point) => point.predictedTtft },
    ],
  },
  { title: "Decisions a second", note: "", text: short, least: 1, lines: [{ name: "decisions", value: (point) => point.rate }] },
  { title: "Prefill to be done", note: "all pods together", text: milliseconds, least: 100, lines: [{ name: "prefill", value: (point) => point.queued }] },
  {
    title: "Requests", note: "at the pods as they report, and held by the picker", text: short, least: 4,
    lines: [
      { name: "running", value: (point) => point.running },
      { name: "held", value: (point) => point.waiting },
    ],
  },
];

export class PredictionView {
  constructor(node, state) {
    this.state = state;
    this.charts = CHARTS.map((each) => new Chart(each));
    node.append(
      el("p", { class: "quiet pad" }, "Since this page was opened, a quarter of an hour at the most; the picker keeps no history. warmpick_* metrics have more."),
      el("div", { class: "charts" }, ...this.charts.map((each) => each.node)),
    );
  }

  draw() {
    const points = rates(this.state.points);
    for (const chart of this.charts) chart.show(points);
  }
}

/** Return what was said between two points that lie some seconds apart, as rates and shares. */
export function rates(points) {
  const found = [];
  let first = 0;
  points.forEach((point, at) => {
    if (point.at - points[first].at < STEP_MS) return;
    found.push(between(points.slice(first, at + 1)));
    first = at;
  });
  if (points.length > 1 && !found.length) found.push(between(points));
  return found;
}

function between([before, ...points]) {
  const point = points.at(-1);
  const since = (name) => point[name] - before[name];
  const known = (name) => points.map((each) => each[name]).filter((value) => value !== null);
  const of = (part, whole) => (whole > 0 && part !== null ? part / whole : null);
  const prompt = since("prompt");
  const reuse = since("reuse_prompt");
  return {
    at: point.at,
    error: of(since("error"), prompt),
    bias: of(since("predicted") - since("cached"), prompt),
    available: of(since("available"), reuse),
    captured: of(since("captured"), reuse),
    delivered: of(since("delivered"), reuse),
    rate: (1e3 * since("decisions")) / (point.at - before.at),
    queued: point.queued,
    running: point.running,
    waiting: point.waiting,
    ttft: median(known("ttft")),
    predictedTtft: median(known("predictedTtft")),
  };
}
