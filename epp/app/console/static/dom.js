// Elements and numbers. What a client sent becomes text here, and nothing else does.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.filter((each) => each !== null && each !== undefined).map(asNode));
  return node;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

export const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(0)}k`;
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  return value.toFixed(size >= 10 ? 1 : 2);
}

export function share(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 %";
  return `${(100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0)} %`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < 0.005) return "0 ms";
  if (size >= 1e3) return `${(value / 1e3).toFixed(size >= 1e4 ? 1 : 2)} s`;
  return `${size >= 100 ? value.toFixed(0) : value.toFixed(size >= 10 ? 1 : 2)} ms`;
}

export function bytes(value) {
  if (value >= 1 << 20) return `${(value / (1 << 20)).toFixed(1)} MB`;
  return value >= 1024 ? `${(value / 1024).toFixed(0)} KB` : `${value} B`;
}

export const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);

export const clockMs = (ms) => `${clock(ms)}.${String(new Date(ms).getMilliseconds()).padStart(3, "0")}`;

/** Pairs of a name and what it is, some with a title. */
export const facts = (pairs) =>
  el("dl", { class: "facts" }, ...pairs.flatMap(([head, text, title]) => [el("dt", { title }, head), el("dd", {}, text)]));

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
