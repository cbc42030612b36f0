// Charts as SVG. Lines differ by dash and by the shape of their points, not by colour alone.

import { number, short } from "./ask.js";

const SPACE = "http://www.w3.org/2000/svg";

export function svg(name, attributes, text = "") {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export function element(name, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
}

export function table(head, rows) {
  const line = (cells, kind) => element("tr", {}, ...cells.map((cell) => element(kind, {}, cell)));
  return element("div", { className: "scroll", tabIndex: 0 },
    element("table", {}, element("thead", {}, line(head, "th")), element("tbody", {}, ...rows.map((row) => line(row, "td")))));
}

// As wide as there is room, so that letters keep their size.
const fitting = (room, most) => Math.min(Math.max(room, 260), most);

// Bars (least, most, queries): how many queries read so many keys.
export function histogram(bars, room) {
  const width = fitting(room, 480), height = 170, bottom = height - 34, left = 46, top = 14;
  const most = Math.max(...bars.map((bar) => bar[2]));
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img",
    "aria-label": `Histogram of keys per query, from ${number(bars[0][0])} to ${number(bars.at(-1)[1])}` });
  const step = (width - left - 8) / bars.length;
  bars.forEach(([least, greatest, queries], at) => {
    const tall = queries ? Math.max((queries / most) * (bottom - top), 1.5) : 0;
    const bar = svg("rect", { x: left + at * step + 0.5, y: bottom - tall, width: Math.max(step - 1, 1), height: tall, class: "bar" });
    bar.append(svg("title", {}, `${number(least)}${greatest > least ? ` to ${number(greatest)}` : ""} keys: ${number(queries)} queries`));
    chart.append(bar);
  });
  chart.append(svg("path", { d: `M${left} ${bottom}H${width - 8}`, class: "axis" }),
    svg("text", { x: left, y: bottom + 15 }, number(bars[0][0])),
    svg("text", { x: width - 8, y: bottom + 15, "text-anchor": "end" }, number(bars.at(-1)[1])),
    svg("text", { x: (left + width) / 2, y: bottom + 30, "text-anchor": "middle" }, "keys that a query reads"),
    svg("text", { x: left - 5, y: top + 6, "text-anchor": "end" }, number(most)),
    svg("text", { x: 0, y: bottom }, "queries"));
  return chart;
}

// Kiloseconds are nobody's unit.
export const amount = (value, unit) => (unit === "s" && value >= 1000 ? `${number(value)} s` : short(value, unit));

const SHAPES = ["one", "two", "three"];

function dot(shape, x, y) {
  const path = { one: `M${x - 4} ${y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0`, two: `M${x - 4} ${y - 4}h8v8h-8z`, three: `M${x} ${y - 5}l5 9h-10z` };
  return svg("path", { d: path[shape], class: `dot-${shape}` });
}

// Lines {name, points: [[x, y]]} on logarithmic axes; `crossing` is an x, or null.
export function logarithmic(title, unit, lines, crossing, room) {
  const width = fitting(room, 560), height = 330, left = 64, right = 14, top = 20 + 17 * lines.length, bottom = height - 42;
  const xs = lines.flatMap((line) => line.points.map((point) => point[0]));
  const ys = lines.flatMap((line) => line.points.map((point) => point[1]));
  const [x0, x1] = [Math.log2(Math.min(...xs)), Math.log2(Math.max(...xs)) + 1e-9];
  const [y0, y1] = [Math.floor(Math.log10(Math.min(...ys))), Math.ceil(Math.log10(Math.max(...ys)))];
  const x = (value) => left + ((Math.log2(value) - x0) / Math.max(x1 - x0, 1)) * (width - left - right);
  const y = (value) => bottom - ((Math.log10(value) - y0) / Math.max(y1 - y0, 1)) * (bottom - top);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `${title}; the table below has the figures` });
  for (let decade = y0; decade <= y1; decade++) {
    chart.append(svg("path", { d: `M${left} ${y(10 ** decade)}H${width - right}`, class: "axis" }),
      svg("text", { x: left - 6, y: y(10 ** decade) + 4, "text-anchor": "end" }, amount(10 ** decade, unit)));
  }
  for (let power = Math.ceil(x0); power <= x1; power += width < 450 ? 4 : 3) {
    chart.append(svg("text", { x: x(2 ** power), y: bottom + 16, "text-anchor": power > x1 - 0.6 ? "end" : "middle" }, number(2 ** power)));
  }
  chart.append(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "tokens"));
  lines.forEach(({ name, points }, at) => {
    const shape = SHAPES[at];
    const path = points.map(([px, py], place) => `${place ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join("");
    chart.append(svg("path", { d: path, class: `line ${shape}` }), ...points.map(([px, py]) => dot(shape, x(px), y(py))));
    chart.append(svg("path", { d: `M${left} ${12 + 17 * at}h26`, class: `line ${shape}` }), dot(shape, left + 13, 12 + 17 * at),
      svg("text", { x: left + 34, y: 16 + 17 * at, class: "strong" }, name));
  });
  if (crossing) {
    chart.append(svg("path", { d: `M${x(crossing)} ${top}V${bottom}`, class: "cross" }),
      svg("text", { x: Math.min(x(crossing) + 5, width - 90), y: bottom - 6, class: "strong" }, `${number(crossing)} tokens`));
  }
  return chart;
}
