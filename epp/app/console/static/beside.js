// What runs beside the picks, where it does: requests that wait, other replicas, a shadow policy.

import { bytes, count, el, facts, milliseconds, share } from "./dom.js";

export class BesideView {
  constructor(node, state) {
    this.state = state;
    this.parts = el("div", { class: "cards" });
    node.append(this.parts);
  }

  draw() {
    const page = this.state.page;
    if (!page) return;
    this.parts.replaceChildren(waiting(page), replicas(page), shadow(page));
  }
}

const card = (title, ...parts) => el("section", { class: "card" }, el("h2", {}, title), ...parts);

const absent = (title, text, flag) => card(title, el("p", {}, text), el("p", { class: "quiet" }, "To turn it on: ", el("code", {}, flag)));


function table(heads, rows, empty) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  const head = heads.map((each, at) => el("th", { scope: "col", class: at ? "number" : "" }, each));
  const line = (cells) => el("tr", {}, ...cells.map((each, at) => el("td", { class: at ? "number" : "" }, each)));
  return el("table", { class: "brief" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows.map(line)));
}

function waiting(page) {
  const told = page.waiting;
  if (!told.holds && !told.gated) {
    const would = sum(told.no_room);
    const text = `Requests go at once, and do not wait in the picker.${would ? ` ${count(would)} found no room so far.` : ""}`;
    return absent("What waits", text, "epp serve --hold=auto");
  }
  const room = page.endpoints.room.filter((value) => value !== null);
  const unknown = page.endpoints.room.length - room.length;
  const fullest = room.filter((value) => value >= 1).length;
  return card(
    "What waits",
    el("p", { class: "big" }, count(told.requests), el("small", {}, " requests wait now")),
    facts([
      ["of bodies", bytes(told.bytes)],
      ["prefill that waits", milliseconds(1e3 * told.prefill_seconds)],
      ["waited and were sent", count(told.waited)],
      ["mean wait of these", told.waited ? milliseconds((1e3 * told.waited_seconds) / told.waited) : "–"],
      ["pods without room", `${count(fullest)} of ${count(page.endpoints.room.length)}${unknown ? `; of ${count(unknown)} it is not known` : ""}`],
      ["share of a cache that may be taken", share(told.memory_share)],
      ["they wait for", told.gated ? "the pool (llm-d-router's gate)" + (told.holds ? " and a pod with room" : "") : "a pod with room"],
    ]),
    el("h3", {}, "By priority"),
    table(["priority", "requests", "bytes"], told.bands.map((each) => [each.priority, count(each.requests), bytes(each.bytes)]), "No request has waited yet."),
    el("h3", {}, "Found no room, by what was lacking"),
    table(["axis", "requests"], numbers(told.no_room), "None."),
    el("h3", {}, "Waited and were refused"),
    table(["reason", "requests"], numbers(told.refused), "None."),
  );
}

const numbers = (counts) => Object.entries(counts).map(([name, times]) => [name, count(times)]);

const sum = (counts) => Object.values(counts).reduce((all, each) => all + each, 0);

function replicas(page) {
  const told = page.replicas;
  if (!told) return absent("Replicas", "This picker tells no other replica what it sees.", "epp serve --replicas=HOST");
  const compared = told.compared_same + told.compared_different;
  return card(
    "Replicas",
    el("p", { class: "big" }, count(told.heard), el("small", {}, ` heard of ${count(told.known)} known, ${count(told.reached)} reached`)),
    facts([
      ["this one", told.warm ? "warm: it knows what the others know" : "is being told what the others know"],
      ["facts taken in", count(told.applied)],
      ["messages unsent", count(told.unsent)],
      ["caches compared", compared ? `${count(compared)}, ${share(told.compared_same / compared)} the same` : "none yet"],
    ]),
    table(
      ["replica", "heard", "lag", "missing", "state"],
      told.peers.map((each) => [
        each.name, `${each.silent_seconds} s ago`, milliseconds(each.lag_ms), count(each.missing),
        each.present ? (each.settled ? "● settled" : "◐ warming up") : "○ gone",
      ]),
      "None was heard yet.",
    ),
    el("h3", {}, "Not used of what came"),
    table(["reason", "messages"], numbers(told.dropped), "None."),
  );
}

function shadow(page) {
  const told = page.shadow;
  if (!told) return absent("Shadow", "No second policy decides beside the live one.", "epp serve --shadow=least-ttft|FILE");
  const compared = told.agreed + told.differed;
  const each = (value) => (compared ? value / compared : null);
  const [live, other] = [each(told.live_ttft_seconds), each(told.shadow_ttft_seconds)];
  return card(
    `Shadow: ${told.policy}`,
    el("p", { class: "big" }, compared ? share(told.agreed / compared) : "–", el("small", {}, ` of ${count(compared)} decisions are the same`)),
    table(
      ["mean of the predictions", "live", "shadow", "shadow less live"],
      [
        ["time to first token", ...pair(live, other, (value) => milliseconds(value === null ? null : 1e3 * value))],
        ["cached tokens", ...pair(each(told.live_cached_tokens), each(told.shadow_cached_tokens), (value) => (value === null ? "–" : value.toFixed(1)))],
      ],
      "",
    ),
    facts([["differed", count(told.differed)], ["refused by the shadow", count(told.refused)], ["failed", count(told.failed)]]),
    el("p", { class: "quiet" }, "It decides by the caches that the live policy has filled; epp replay shows what it would have made of them."),
  );
}

function pair(live, other, text) {
  if (live === null) return ["–", "–", "–"];
  const more = other - live;
  return [text(live), text(other), `${more < 0 ? "−" : more > 0 ? "+" : ""}${text(Math.abs(more))}`];
}
