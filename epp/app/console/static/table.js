// A table of any length: only the rows that can be seen are in the document. Rows are sorted,
// filtered, walked through and opened.

import { el } from "./dom.js";

const ROW = 26;
const BESIDE = 6;

/**
 * columns: {name, head, title, text(row), key(row), bar(row), kind, className(row)}; `bar` is a
 * share of the cell that is filled. `id(row)` tells rows apart, `find(row)` is what a filter reads.
 * `still`: what is looked at stays where it is while rows come above it.
 */
export class Table {
  rows = [];
  selected = null;
  filter = "";
  #shown = [];
  #lines = [];
  #first = 0;

  constructor({ label, columns, id, find, open, sort = null, reverse = false, still = false }) {
    Object.assign(this, { columns, id, find, open, sort, reverse, still });
    this.empty = el("p", { class: "empty", hidden: true });
    this.heads = columns.map((column, at) => this.#head(column, at));
    this.body = el("tbody");
    this.before = el("tr", { "aria-hidden": "true" }, el("td", { colspan: columns.length }));
    this.after = el("tr", { "aria-hidden": "true" }, el("td", { colspan: columns.length }));
    this.table = el(
      "table", { role: "grid", "aria-label": label },
      el("thead", {}, el("tr", {}, ...this.heads)), this.body,
    );
    this.node = el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, this.table, this.empty);
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  #head(column, at) {
    const sorting = () => this.sortBy(at, this.sort === at ? !this.reverse : column.kind !== "text");
    const button = el("button", { title: column.title ?? column.head, on: { click: sorting } }, column.head);
    return el("th", { scope: "col", class: column.kind ?? "" }, column.key ? button : column.head);
  }

  sortBy(at, reverse) {
    [this.sort, this.reverse] = [at, reverse];
    this.show(this.rows);
  }

  /** Sort by the next column that can be, or the one before. */
  sortNext(step) {
    let at = this.sort ?? -step;
    do at = (at + step + this.columns.length) % this.columns.length;
    while (!this.columns[at].key);
    this.sortBy(at, this.columns[at].kind !== "text");
  }

  show(rows) {
    this.rows = rows;
    const held = this.still ? this.#looked() : null;
    const wanted = this.filter.toLowerCase();
    const found = wanted ? rows.filter((row) => this.find(row).toLowerCase().includes(wanted)) : rows;
    this.#shown = this.sort === null ? found : this.#sorted(found);
    this.heads.forEach((head, at) => {
      const way = this.reverse ? "descending" : "ascending";
      head.setAttribute("aria-sort", at === this.sort ? way : "none");
    });
    this.empty.hidden = found.length > 0;
    this.empty.textContent = rows.length ? `No row has “${this.filter}”.` : "Nothing yet.";
    this.draw(true);
    if (held) this.#hold(held);
  }

  /** The row that is looked at, and how far below the top it is: the selected one, or the first. */
  #looked() {
    const [top, height] = [this.node.scrollTop, this.node.clientHeight];
    let at = this.#shown.findIndex((row) => this.id(row) === this.selected);
    if (at * ROW < top || at * ROW > top + height) at = top > 0 ? Math.floor(top / ROW) : -1;
    return at < 0 || at >= this.#shown.length ? null : { id: this.id(this.#shown[at]), below: at * ROW - top };
  }

  #hold({ id, below }) {
    const at = this.#shown.findIndex((row) => this.id(row) === id);
    if (at >= 0 && at * ROW - below !== this.node.scrollTop) {
      this.node.scrollTop = at * ROW - below;
      this.draw(true);
    }
  }

  /** How many rows are above those that are seen. */
  get above() {
    return Math.floor(this.node.scrollTop / ROW);
  }

  /** Go back to the first rows, and stay there; return whether that was not so. */
  release() {
    const away = this.node.scrollTop > 0 || this.selected !== null;
    this.selected = null;
    this.node.scrollTop = 0;
    this.draw(true);
    return away;
  }

  #sorted(rows) {
    const key = this.columns[this.sort].key;
    const way = this.reverse ? -1 : 1;
    const compare = (a, b) => {
      const [one, other] = [key(a), key(b)];
      if (one === null || other === null) return (one === null) - (other === null);
      return one < other ? -way : one > other ? way : 0;
    };
    return rows.toSorted(compare);
  }

  get shown() {
    return this.#shown;
  }

  draw(anew = false) {
    const height = this.node.clientHeight;
    if (!height) return;
    const most = Math.ceil(height / ROW) + 2 * BESIDE;
    const last = Math.max(0, this.#shown.length - most);
    const first = Math.min(last, Math.max(0, Math.floor(this.node.scrollTop / ROW) - BESIDE));
    const lines = Math.min(most, this.#shown.length);
    if (!anew && first === this.#first && lines === this.#lines.length) return;
    this.#first = first;
    this.#fit(lines);
    this.before.firstChild.style.height = `${first * ROW}px`;
    this.after.firstChild.style.height = `${(this.#shown.length - first - lines) * ROW}px`;
    this.table.setAttribute("aria-rowcount", this.#shown.length + 1);
    this.#lines.forEach((line, at) => this.#write(line, this.#shown[first + at], first + at));
  }

  #fit(lines) {
    while (this.#lines.length > lines) this.#lines.pop().remove();
    if (!this.before.parentNode) this.body.append(this.before, this.after);
    while (this.#lines.length < lines) {
      const cells = this.columns.map((column) => el("td", { class: column.kind ?? "" }));
      const line = el("tr", {}, ...cells);
      line.addEventListener("click", () => this.#opened(line.row));
      this.after.before(line);
      this.#lines.push(line);
    }
  }

  #write(line, row, at) {
    line.row = row;
    line.setAttribute("aria-rowindex", at + 2);
    const chosen = this.selected !== null && this.id(row) === this.selected;
    line.setAttribute("aria-selected", chosen);
    line.classList.toggle("selected", chosen);
    this.columns.forEach((column, place) => {
      const cell = line.cells[place];
      const text = column.text(row);
      if (cell.textContent !== text) cell.textContent = text;
      if (column.bar) cell.style.setProperty("--part", clamp(column.bar(row)));
      if (column.className) cell.className = `${column.kind ?? ""} ${column.className(row)}`;
      if (column.full) cell.title = column.full(row);
    });
  }

  #opened(row) {
    this.selected = this.id(row);
    this.draw(true);
    this.open(row);
  }

  openSelected() {
    const row = this.#shown.find((each) => this.id(each) === this.selected);
    if (row) this.open(row);
  }

  /** Select the next row, or another that is so far away. */
  move(step) {
    if (!this.#shown.length) return;
    const now = this.#shown.findIndex((row) => this.id(row) === this.selected);
    const next = now < 0 ? 0 : Math.min(this.#shown.length - 1, Math.max(0, now + step));
    this.selected = this.id(this.#shown[next]);
    this.reveal(next);
    this.draw(true);
  }

  select(id) {
    this.selected = id;
    this.reveal(this.#shown.findIndex((row) => this.id(row) === id));
    this.draw(true);
  }

  reveal(at) {
    if (at < 0) return;
    const [top, height] = [this.node.scrollTop, this.node.clientHeight - 2 * ROW];
    if (at * ROW < top) this.node.scrollTop = at * ROW;
    else if (at * ROW > top + height) this.node.scrollTop = at * ROW - height;
  }
}

/** The field that filters the table of a view. */
export function filterOf(view, placeholder, label) {
  const type = () => {
    view.table.filter = field.value;
    view.draw();
  };
  const field = el("input", {
    type: "search", placeholder, "aria-label": label, autocomplete: "off", spellcheck: "false", on: { input: type },
  });
  return field;
}

const clamp = (value) => (value === null || value === undefined ? 0 : Math.min(1, Math.max(0, value)));
