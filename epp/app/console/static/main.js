// The page: asks the picker each second, shows one view, and what a row has to say beside it.

import { BesideView } from "./beside.js";
import { DecisionsView } from "./decisions.js";
import { byId, clock, count, el, short } from "./dom.js";
import { explanation } from "./explanation.js";
import { FleetView } from "./fleet.js";
import { listenToKeys } from "./keys.js";
import { PredictionView } from "./prediction.js";
import { PrefixesView } from "./prefixes.js";
import { State } from "./state.js";

const NAMES = ["fleet", "decisions", "prediction", "beside", "prefixes"];
const EVERY_MS = 1_000;
const EVERY_MS_OF_MANY = 2_000;
const MANY_PODS = 300;
const TIMEOUT_MS = 8_000;

const state = new State();
let paused = false;
let shown = "fleet";

async function ask(page, query) {
  const url = new URL(`../debug/${page}`, import.meta.url);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) throw new Error(`${response.status} ${(await response.text()).slice(0, 200)}`);
  return response.json();
}

const details = {
  anew: null,
  opened: null,
  show(make, { narrow = false } = {}) {
    this.opened ??= document.activeElement;
    this.anew = make;
    byId("details").hidden = false;
    byId("details").classList.toggle("narrow", narrow);
    this.draw();
    byId("details-body").scrollTop = 0;
  },
  draw() {
    if (this.anew) byId("details-body").replaceChildren(...this.anew().filter(Boolean));
  },
  async explain(row) {
    let found;
    try {
      const page = await ask("decisions", { request: row.request });
      // Of several workers each has numbers of its own there: a request is most often decided on once.
      found = page.decisions.find((each) => each.number === row.number) ?? page.decisions.at(-1);
    } catch (error) {
      return this.show(() => [el("h2", {}, "Why that pod?"), el("p", { class: "bad" }, `It cannot be asked for: ${error.message}`)]);
    }
    const parts = found ? explanation(found) : [el("h2", {}, "Why that pod?"), el("p", {}, "The picker no longer keeps this decision: it keeps the last 1,024 at the most.")];
    this.show(() => parts);
  },
  close() {
    if (byId("details").hidden) return false;
    byId("details").hidden = true;
    this.anew = null;
    this.opened?.focus?.();
    this.opened = null;
    return true;
  },
};

const views = {
  fleet: new FleetView(byId("view-fleet"), state, details),
  decisions: new DecisionsView(byId("view-decisions"), state, details),
  prediction: new PredictionView(byId("view-prediction"), state),
  beside: new BesideView(byId("view-beside"), state),
  prefixes: new PrefixesView(byId("view-prefixes"), (page, query) => ask(page, query).catch(lost)),
};

function show(name) {
  shown = name;
  for (const each of NAMES) {
    byId(`view-${each}`).hidden = each !== name;
    byId(`tab-${each}`).setAttribute("aria-selected", each === name);
  }
  history.replaceState(null, "", `#${name}`);
  draw();
}

function draw() {
  if (!state.page) return;
  byId("pool").textContent = state.page.pool;
  document.title = `${state.page.pool} · Warmpick`;
  const rate = state.rate;
  byId("figures").textContent = `${count(state.page.decisions)} decisions, ${rate === null ? "–" : short(rate)}/s`;
  views[shown].draw();
  details.draw();
}

function status(text, kind) {
  byId("status").textContent = text;
  byId("status").className = kind;
}

const lost = (error) => status(`✕ no answer since ${state.page ? clock(state.page.at_ms) : "the start"}: ${error.message}`, "bad");

async function turn() {
  if (!paused && !document.hidden) {
    try {
      state.take(await ask("console", state.query));
      if (!paused) {
        status("● live", "good");
        draw();
      }
    } catch (error) {
      lost(error);
    }
  }
  const many = (state.page?.endpoints.endpoint.length ?? 0) > MANY_PODS;
  setTimeout(turn, many ? EVERY_MS_OF_MANY : EVERY_MS);
}

function pause() {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", paused);
  byId("pause").textContent = paused ? "Go on" : "Pause";
  status(paused ? "❚❚ paused" : "● live", paused ? "" : "good");
}

function close() {
  if (details.close()) return;
  const { filter, table } = views[shown];
  if (filter?.value) {
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
  } else if (table?.release?.()) draw();
}

for (const name of NAMES) byId(`tab-${name}`).addEventListener("click", () => show(name));
byId("pause").addEventListener("click", pause);
byId("help-open").addEventListener("click", () => byId("help").showModal());
byId("details-close").addEventListener("click", () => details.close());
listenToKeys({ view: () => views[shown], show: (at) => show(NAMES[at]), pause, close });
const wanted = location.hash.slice(1);
show(NAMES.includes(wanted) ? wanted : "fleet");
turn();
