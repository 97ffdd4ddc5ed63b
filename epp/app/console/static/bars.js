// A pool as a bar: every pod a column of it, as high and as dark as its value. Pods that cannot be
// picked are crossed out, so that neither their state nor a value is told by colour alone.

import { css, el } from "./dom.js";

const HIGH = 34;
const GAP = 4;
const WIDEST = 96;
const NARROWEST = 9;

export class Bars {
  #rows = [];
  #value = () => 0;
  #selected = null;

  constructor({ pick }) {
    this.canvas = el("canvas", { role: "img", tabindex: "-1" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.node = el("div", { class: "bars" }, this.canvas, this.tip);
    this.canvas.addEventListener("click", (event) => {
      const row = this.#at(event);
      if (row) pick(row);
    });
    this.canvas.addEventListener("mousemove", (event) => this.#hover(event));
    this.canvas.addEventListener("mouseleave", () => (this.tip.hidden = true));
    new ResizeObserver(() => this.#draw()).observe(this.node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /**
   * `value(row)` is from 0 to 1, or null; `told(row)` and `label` are words. `absolute`: 1 is full,
   * and not the highest that there is.
   */
  show(rows, { value, told, label, selected, absolute }) {
    this.absolute = absolute;
    this.#rows = rows;
    this.#value = value;
    this.told = told;
    this.#selected = selected;
    this.canvas.setAttribute("aria-label", label);
    this.#draw();
  }

  #measure() {
    const wide = this.node.clientWidth;
    const each = Math.min(WIDEST, Math.max(NARROWEST, Math.floor(wide / Math.max(1, this.#rows.length))));
    const across = Math.max(1, Math.floor(wide / each));
    return { wide, each, across, deep: Math.ceil(this.#rows.length / across) };
  }

  #at(event) {
    const { each, across } = this.#measure();
    const column = Math.floor(event.offsetX / each);
    const line = Math.floor(event.offsetY / (HIGH + GAP));
    return column < across ? this.#rows[line * across + column] : undefined;
  }

  #hover(event) {
    const row = this.#at(event);
    this.tip.hidden = !row;
    if (!row) return;
    this.tip.textContent = this.told(row);
    const left = Math.min(event.offsetX + 12, this.node.clientWidth - this.tip.offsetWidth - 4);
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${event.offsetY + 16}px`;
  }

  #draw() {
    const { wide, each, across, deep } = this.#measure();
    if (!wide) return;
    const sharp = devicePixelRatio || 1;
    const high = Math.max(1, deep * (HIGH + GAP) - GAP);
    this.canvas.width = Math.round(wide * sharp);
    this.canvas.height = Math.round(high * sharp);
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(sharp, sharp);
    const colours = {
      back: css("--track"), low: css("--heat-low"), mid: css("--heat-mid"), high: css("--heat-high"),
      ink: css("--ink"), bad: css("--bad"),
    };
    this.#rows.forEach((row, at) => {
      const left = (at % across) * each;
      const top = Math.floor(at / across) * (HIGH + GAP);
      this.#cell(pen, colours, row, { left, top, width: each - (each > 12 ? 3 : 2) });
    });
  }

  #cell(pen, colours, row, { left, top, width }) {
    const value = this.#value(row);
    pen.fillStyle = colours.back;
    pen.fillRect(left, top, width, HIGH);
    if (row.state !== "ready" && row.state !== "partial") {
      pen.strokeStyle = colours.bad;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(left + 1, top + 1);
      pen.lineTo(left + width - 1, top + HIGH - 1);
      pen.moveTo(left + width - 1, top + 1);
      pen.lineTo(left + 1, top + HIGH - 1);
      pen.stroke();
    } else if (value !== null) {
      const part = Math.min(1, Math.max(0, value));
      const level = this.absolute ? part : 0;
      pen.fillStyle = level > 0.85 ? colours.high : level > 0.5 ? colours.mid : colours.low;
      const tall = Math.max(1, part * HIGH);
      pen.fillRect(left, top + HIGH - tall, width, tall);
    }
    if (row.endpoint === this.#selected) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(left - 0.5, top + 0.5, width + 1, HIGH - 1);
    }
  }
}
