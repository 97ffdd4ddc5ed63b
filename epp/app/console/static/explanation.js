// Why a request went where it went: its candidates with every term of their costs, and what happened.

import { count, el, facts, milliseconds, share } from "./dom.js";

const TERMS = [
  ["queued_prefill", "queued", "prefill to be done there first"],
  ["prefill", "prefill", "this prompt's own, there"],
  ["decode", "decode", "what running decodes add to it"],
  ["class_prefill", "class", "its prefill at the speed of the endpoint's class"],
  ["generation", "generate", "what its answer takes"],
  ["crowding", "crowd", "what it takes from others"],
  ["slot", "slot", "what waiting for an adapter's slot costs others"],
];

export function explanation(decision) {
  const names = [["request", decision.request]];
  if (decision.client_id) names.push(["x-request-id", decision.client_id]);
  names.push(["model", decision.model || "–"], ["at", decision.at]);
  return [
    el("h2", {}, "Why that pod?"),
    facts(names),
    ...(decision.profiles ?? []).flatMap(profile),
    el("h3", {}, "What then happened"),
    decision.ending ? ending(decision) : el("p", {}, "It is running."),
  ];
}


function profile(each) {
  const left = each.considered - each.passed;
  const compared = { cost: "costs in milliseconds", score: "scores" }[each.measure] ?? "what only its picker knows";
  const cost = each.measure === "cost";
  const most = Math.max(1e-9, ...each.candidates.map((row) => row.cost_ms));
  const hidden = each.passed - each.candidates.length;
  return [
    el("h3", {}, `Profile ${each.profile}`),
    el("p", {}, verdict(each)),
    el(
      "p", { class: "quiet" },
      `${count(each.passed)} candidates${left ? `, ${count(left)} filtered out` : ""}; ${count(each.prompt_tokens)} prompt tokens; it compares ${compared}.`,
    ),
    cost ? legend() : null,
    el("div", { class: "wide" }, candidates(each, cost, most)),
    hidden > 0 ? el("p", { class: "quiet" }, `and ${count(hidden)} more`) : null,
    el("p", { class: "quiet" }, `cost = queued + prefill + decode + ${Object.entries(each.weights).map(([name, weight]) => `${weight} × ${word(name)}`).join(" + ")}`),
  ];
}

const word = (name) => TERMS.find(([term]) => term === name)?.[1] ?? name;

function verdict(each) {
  const first = el("strong", {}, each.winner);
  if (!each.runner_up) return el("span", {}, first, " was picked; there was no other.");
  if (each.margin === null || each.margin === undefined) return el("span", {}, first, ` was picked, before ${each.runner_up}.`);
  const by = each.measure === "cost" ? milliseconds(each.margin) : `${each.margin} of score`;
  const how = each.margin < 0 ? ` was picked although ${each.runner_up} was better by ` : " was picked by ";
  const than = each.margin < 0 ? "" : `, before ${each.runner_up}`;
  return el("span", {}, first, how, el("strong", {}, by.replace("-", "")), `${than}.`);
}

const legend = () =>
  el(
    "ul", { class: "legend" },
    ...TERMS.map(([name, short, long], at) => el("li", { title: long }, el("span", { class: `swatch term-${at}`, "data-term": name }), short)),
  );

function candidates(each, cost, most) {
  const spaces = new Set(each.candidates.map((row) => row.endpoint.split("/")[0]));
  const name = (endpoint) => (spaces.size > 1 ? endpoint : endpoint.slice(endpoint.indexOf("/") + 1));
  const scorers = Object.keys(each.candidates[0]?.scores ?? {});
  const scored = each.measure === "score" ? ["score", ...scorers] : [];
  const heads = ["", "pod", "cached", "trust", "sent", "TTFT", ...scored, "cost", ...TERMS.map(([, short]) => short)];
  const row = (candidate) => {
    const picked = candidate.endpoint === each.winner;
    const score = each.measure === "score" ? [candidate.score, ...scorers.map((scorer) => candidate.scores[scorer])] : [];
    return el(
      "tr", { class: picked ? "picked" : "" },
      el("td", {}, picked ? el("span", { title: "picked" }, "▶") : ""),
      el("td", { class: "name", title: `${candidate.endpoint} ${candidate.target}` }, name(candidate.endpoint)),
      el("td", { class: "number" }, count(candidate.cached_tokens)),
      el("td", { class: "number" }, candidate.trust.toFixed(2)),
      el("td", { class: "number" }, count(candidate.requests)),
      el("td", { class: "number" }, milliseconds(candidate.predicted_ttft_ms)),
      ...score.map((value) => el("td", { class: "number" }, value === null || value === undefined ? "–" : value.toFixed(3))),
      el("td", { class: "number cost" }, milliseconds(candidate.cost_ms), cost ? stack(candidate, each.weights, most) : null),
      ...TERMS.map(([term]) => el("td", { class: "number" }, candidate.terms_ms[term].toFixed(1))),
    );
  };
  return el(
    "table", { class: "candidates" },
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...each.candidates.map(row)),
  );
}

/** Return a cost as the terms that it is added up from, weighted. */
function stack(candidate, weights, most) {
  const bar = el("span", { class: "stack", "aria-hidden": "true" });
  TERMS.forEach(([name], at) => {
    const part = (candidate.terms_ms[name] * (weights[name] ?? 1)) / most;
    if (!(part > 0.002)) return;
    const piece = el("span", { class: `term-${at}` });
    piece.style.width = `${100 * part}%`;
    bar.append(piece);
  });
  return bar;
}

function ending(decision) {
  const was = decision.ending;
  const predicted = decision.profiles?.at(-1)?.candidates[0];
  const pairs = [["outcome", [was.outcome, was.status].filter(Boolean).join(", ")]];
  if (was.served) pairs.push(["served by", was.served]);
  if (was.sent_after_ms >= 10) pairs.push(["sent after", milliseconds(was.sent_after_ms)]);
  if (was.ttft_ms !== undefined) {
    pairs.push(["first token after", `${milliseconds(was.ttft_ms)} (predicted ${milliseconds(predicted?.predicted_ttft_ms)})`]);
  }
  if (was.duration_ms !== undefined) pairs.push(["in all", milliseconds(was.duration_ms)]);
  if (was.prompt_tokens !== undefined) pairs.push(["prompt", `${count(was.prompt_tokens)} tokens`]);
  if (was.cached_tokens !== undefined) {
    const part = was.prompt_tokens ? ` (${share(was.cached_tokens / was.prompt_tokens)})` : "";
    pairs.push(["cached", `${count(was.cached_tokens)} tokens${part}, predicted ${count(predicted?.cached_tokens)}`]);
  }
  if (was.completion_tokens !== undefined) pairs.push(["generated", `${count(was.completion_tokens)} tokens`]);
  if (was.failure) pairs.push(["failure", was.failure]);
  if (was.error) pairs.push(["given up for", was.error]);
  return facts(pairs);
}
