// Lines over time, drawn by hand. A line is told from others by its dashes and its name at its end,
// not by colour alone; the values under the pointer are written out.

import { clock, css, el, svg } from "./dom.js";

const HIGH = 190;
const LEFT = 56;
const RIGHT = 118;
const TOP = 12;
const BOTTOM = 22;
const DASHES = ["", "5 6", "0.2 5", "8 5 0.2 5"]; // Round ends make a dash longer by the width of its line.

export class Chart {
  #points = [];

  /** lines: {name, value(point)}; `text` writes a value, `least` is the least height of the scale,
   *  `empty` says why no point may have a value. */
  constructor({ title, note, lines, text, least = 0, empty = "" }) {
    Object.assign(this, { title, lines, text, least, empty });
    this.picture = svg("svg", { role: "img", height: HIGH });
    this.now = el("figcaption", {}, el("strong", {}, title), " ", el("span", { class: "quiet" }, note));
    this.read = el("p", { class: "read", "aria-live": "off" });
    this.node = el("figure", { class: "chart" }, this.now, this.picture, this.read);
    this.picture.addEventListener("mousemove", (event) => this.#point(event));
    this.picture.addEventListener("mouseleave", () => this.#draw());
    new ResizeObserver(() => this.#draw()).observe(this.node);
  }

  show(points) {
    this.#points = points;
    if (!this.picture.matches(":hover")) this.#draw();
  }

  #frame() {
    const points = this.#points;
    const wide = this.node.clientWidth - 2;
    const values = points.flatMap((point) => this.lines.map((line) => line.value(point))).filter((value) => value !== null);
    const top = nice(Math.max(this.least, ...values));
    const low = Math.min(0, ...values);
    const bottom = low < 0 ? -nice(-low) : 0;
    const [from, to] = [points[0]?.at ?? 0, points.at(-1)?.at ?? 1];
    const x = (at) => LEFT + ((wide - LEFT - RIGHT) * (at - from)) / Math.max(1, to - from);
    const y = (value) => TOP + ((HIGH - TOP - BOTTOM) * (top - value)) / (top - bottom);
    return { wide, top, bottom, from, to, x, y };
  }

  #known() {
    return this.#points.some((point) => this.lines.some((line) => line.value(point) !== null));
  }

  #draw(chosen = null) {
    const frame = this.#frame();
    if (frame.wide < LEFT + RIGHT) return;
    this.picture.setAttribute("width", frame.wide);
    this.picture.setAttribute("viewBox", `0 0 ${frame.wide} ${HIGH}`);
    const told = this.lines.map((line) => `${line.name} ${this.text(last(this.#points, line))}`).join(", ");
    this.picture.setAttribute("aria-label", `${this.title}: ${told}`);
    const parts = [...this.#grid(frame), ...this.lines.map((line, at) => this.#line(frame, line, at)), ...this.#names(frame)];
    if (chosen) {
      const at = frame.x(chosen.at);
      parts.push(svg("line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: HIGH - BOTTOM }));
    }
    this.picture.replaceChildren(...parts);
    const point = chosen ?? this.#points.at(-1);
    const words = this.lines.map((line) => `${line.name} ${this.text(point ? line.value(point) : null)}`).join(" · ");
    this.read.textContent = point ? `${clock(point.at)}  ${this.#known() ? words : this.empty || words}` : "Nothing yet: it takes two answers of the picker.";
  }

  #grid({ wide, top, bottom, from, to, x, y }) {
    const right = wide - RIGHT;
    const values = bottom < 0 ? [top, 0, bottom] : [top, top / 2, 0];
    const lines = values.flatMap((value) => [
      svg("line", { class: value === 0 ? "axis" : "grid", x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { class: "scale", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.text(value)),
    ]);
    if (!this.#points.length) return lines;
    const times = [from, (from + to) / 2, to].map((at, place) =>
      svg("text", { class: "scale", x: x(at), y: HIGH - 6, "text-anchor": ["start", "middle", "end"][place] }, clock(at)),
    );
    return [...lines, ...times];
  }

  #line({ x, y }, line, at) {
    let path = "";
    let drawn = false;
    for (const point of this.#points) {
      const value = line.value(point);
      // A value between two that are not known is a dot: a line of hardly any length with round ends.
      if (value !== null) path += `${drawn ? "L" : "M"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}${drawn ? "" : "h.01"}`;
      drawn = value !== null;
    }
    return svg("path", { class: "line", d: path, stroke: css(`--line-${at}`), "stroke-dasharray": DASHES[at] });
  }

  /** The lines' names at their ends, apart from each other. */
  #names({ wide, y }) {
    const ends = this.lines
      .map((line, at) => ({ line, at, value: last(this.#points, line) }))
      .filter((end) => end.value !== null)
      .map((end) => ({ ...end, y: y(end.value) }))
      .sort((a, b) => a.y - b.y);
    ends.forEach((end, at) => {
      if (at && end.y < ends[at - 1].y + 15) end.y = ends[at - 1].y + 15;
    });
    const over = ends.length ? Math.max(0, ends.at(-1).y - (HIGH - BOTTOM)) : 0;
    return ends.map((end) =>
      svg("text", { class: "label", x: wide - RIGHT + 6, y: end.y - over + 4, fill: css(`--line-${end.at}`) }, `${end.line.name} ${this.text(end.value)}`),
    );
  }

  #point(event) {
    const { x } = this.#frame();
    const at = event.clientX - this.picture.getBoundingClientRect().left;
    let nearest = null;
    for (const point of this.#points) {
      if (!nearest || Math.abs(x(point.at) - at) < Math.abs(x(nearest.at) - at)) nearest = point;
    }
    this.#draw(nearest);
  }
}

function last(points, line) {
  for (let at = points.length - 1; at >= 0; at--) {
    const value = line.value(points[at]);
    if (value !== null) return value;
  }
  return null;
}

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * power >= value * 0.999);
}
