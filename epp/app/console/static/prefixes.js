// Hot prefixes: what the last prompts have in common, as a tree that opens.

import { count, el, share } from "./dom.js";

const EVERY_MS = 3_000;

export class PrefixesView {
  #open = new Set();
  #asked = 0;
  #tree = null;
  #selected = null;

  constructor(node, ask) {
    this.ask = ask;
    this.note = el("p", { class: "quiet pad" });
    this.rows = el("tbody");
    const heads = ["prefix", "requests", "", "tokens", "of them new", "model", "last asked for", "held by"].map((head, at) =>
      el("th", { scope: "col", class: [1, 3, 4, 6].includes(at) ? "number" : "" }, head),
    );
    this.table = el("table", { role: "treegrid", "aria-label": "Hot prefixes" }, el("thead", {}, el("tr", {}, ...heads)), this.rows);
    node.append(this.note, el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Hot prefixes" }, this.table));
  }

  async draw() {
    if (Date.now() - this.#asked < EVERY_MS) return;
    this.#asked = Date.now();
    const tree = await this.ask("prefixes", {});
    if (tree) this.#show(tree);
  }

  #show(tree) {
    this.#tree = tree;
    const shared = tree.roots.length;
    this.note.textContent = tree.requests
      ? `Of the last ${count(tree.requests)} decisions that are kept with their prompts: ${shared ? `${count(shared)} beginnings that at least two of them share` : "no two begin alike"}. ` +
        "Names are keyed hashes of blocks, not of text; “held by” is as predicted when it was last asked for."
      : "No decision is kept with its prompt: none was made, or an endpoint was removed a moment ago.";
    const lines = [];
    const walk = (node, above, path, depth) => {
      const place = `${path}/${node.name}`;
      lines.push(this.#line(node, above, place, depth));
      if (this.#open.has(place)) node.children.forEach((child) => walk(child, node, place, depth + 1));
    };
    tree.roots.forEach((root) => walk(root, null, "", 0));
    this.rows.replaceChildren(...lines);
  }

  #line(node, above, place, depth) {
    const open = this.#open.has(place);
    const mark = node.children.length ? (open ? "▾" : "▸") : "·";
    const name = el("td", { class: "name" }, el("span", { class: "mark" }, mark), ` ${node.name}`);
    name.style.paddingLeft = `${0.6 + 1.4 * depth}rem`;
    const part = node.requests / Math.max(1, this.#tree.requests);
    const bar = el("td", { class: "number part" }, share(part));
    bar.style.setProperty("--part", part);
    const line = el(
      "tr",
      {
        "aria-level": depth + 1, "aria-expanded": node.children.length ? open : null,
        "aria-selected": place === this.#selected, class: place === this.#selected ? "selected" : "",
        on: { click: () => this.#toggle(place) },
      },
      name,
      el("td", { class: "number" }, count(node.requests)),
      bar,
      el("td", { class: "number" }, count(node.tokens)),
      el("td", { class: "number" }, `+${count(node.tokens - (above?.tokens ?? 0))}`),
      el("td", { class: "name" }, node.model),
      el("td", { class: "number" }, `${node.seconds_ago} s ago`),
      el("td", { class: "name", title: node.endpoints.join(" ") }, `${count(node.holders)}: ${node.endpoints.slice(0, 3).join(", ")}${node.holders > 3 ? " …" : ""}`),
    );
    line.place = place;
    return line;
  }

  #toggle(place) {
    this.#selected = place;
    if (!this.#open.delete(place)) this.#open.add(place);
    this.#show(this.#tree);
  }

  move(step) {
    const lines = [...this.rows.children];
    if (!lines.length) return;
    const now = lines.findIndex((line) => line.place === this.#selected);
    this.#selected = lines[now < 0 ? 0 : Math.min(lines.length - 1, Math.max(0, now + step))].place;
    this.#show(this.#tree);
    [...this.rows.children].find((line) => line.place === this.#selected)?.scrollIntoView({ block: "nearest" });
  }

  openSelected() {
    if (this.#selected) this.#toggle(this.#selected);
  }
}
