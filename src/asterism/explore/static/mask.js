// A mask on a canvas: queries down, keys across; any part of it, moved and zoomed, with marks on top.

import { number } from "./ask.js";

const LEFT = 54, TOP = 24;
const LEAST_SIDE = 8;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// 256 colours: none, shares with small ones lifted so that thin lines show, all.
function ramp() {
  const [none, some, all] = ["--empty", "--some", "--full"].map((name) => channels(colour(name)));
  return Array.from({ length: 256 }, (_, level) => {
    if (level === 0) return none;
    const along = level === 255 ? 1 : 0.85 * Math.sqrt(level / 255);
    return some.map((channel, at) => Math.round(channel + (all[at] - channel) * along));
  });
}

export class Mask {
  // `moved(view)` is told where somebody moved to, `looked(text)` what is under the pointer, and `picked(query)` which
  // query was clicked. `describe(cell, queries, keys)` says what a cell is, where that is not whether it is allowed.
  constructor(canvas, moved, looked, { picked = () => {}, describe = null } = {}) {
    Object.assign(this, { canvas, moved, looked, picked, describe, data: null, view: null, extent: 1, marks: null, fresh: null });
    this.context = canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#hold(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("pointercancel", () => this.#release());
    canvas.addEventListener("pointerleave", () => this.looked(""));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  // A part as the server tells it: borders of rows and columns, and the level of each cell.
  show(data, extent) {
    Object.assign(this, { data, extent });
    this.image = null;
    this.draw();
  }

  get whole() {
    return { q: 0, k: 0, side: this.extent };
  }

  get shown() {
    return this.view ?? this.whole;
  }

  go(view) {
    const side = Math.min(Math.max(view.side, Math.min(LEAST_SIDE, this.extent)), this.extent);
    const inside = (start) => Math.min(Math.max(start, 0), this.extent - side);
    const next = side >= this.extent ? null : { q: inside(view.q), k: inside(view.k), side };
    this.view = next;
    this.draw();
    this.moved(next);
  }

  zoom(factor, q = null, k = null) {
    const { q: q0, k: k0, side } = this.shown;
    const atQ = q ?? q0 + side / 2, atK = k ?? k0 + side / 2;
    const next = side * factor;
    this.go({ q: atQ - (atQ - q0) * factor, k: atK - (atK - k0) * factor, side: next });
  }

  #size() {
    const { clientWidth, clientHeight } = this.canvas;
    const side = Math.max(Math.min(clientWidth - LEFT, clientHeight - TOP) - 2, 1);
    return { width: side, height: side };
  }

  #token(event) {
    const box = this.canvas.getBoundingClientRect();
    const { width, height } = this.#size();
    const { q, k, side } = this.shown;
    const x = event.clientX - box.left - LEFT, y = event.clientY - box.top - TOP;
    return { q: q + (y / height) * side, k: k + (x / width) * side, inside: x >= 0 && y >= 0 && x < width && y < height };
  }

  #wheel(event) {
    event.preventDefault();
    const { q, k } = this.#token(event);
    this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) / 400), q, k);
  }

  #hold(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("held");
    this.held = { x: event.clientX, y: event.clientY, view: this.shown };
  }

  #move(event) {
    if (this.held) {
      const { width, height } = this.#size();
      const { x, y, view } = this.held;
      this.go({ q: view.q - ((event.clientY - y) / height) * view.side, k: view.k - ((event.clientX - x) / width) * view.side, side: view.side });
    } else {
      this.looked(this.#read(this.#token(event)));
    }
  }

  #release(event = null) {
    if (event && this.held && Math.hypot(event.clientX - this.held.x, event.clientY - this.held.y) < 4) {
      const { q, inside } = this.#token(event);
      if (inside) this.picked(Math.floor(q));
    }
    this.held = null;
    this.canvas.classList.remove("held");
  }

  #key(event) {
    const { q, k, side } = this.shown, step = side / 8;
    const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in moves) this.go({ q: q + moves[event.key][0], k: k + moves[event.key][1], side });
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0" || event.key === "Home") this.go(this.whole);
    else return;
    event.preventDefault();
  }

  #read({ q, k, inside }) {
    const { data } = this;
    if (!inside || !data) return "";
    const row = cell(data.rows, q), column = cell(data.columns, k);
    if (row < 0 || column < 0) return "";
    const level = data.levels[row * (data.columns.length - 1) + column];
    const queries = range(data.rows, row), keys = range(data.columns, column);
    if (this.describe) return this.describe(row * (data.columns.length - 1) + column, queries, keys);
    const one = !`${queries}${keys}`.includes("to");
    if (one) return `query ${queries}, key ${keys}: ${level === 255 ? "may attend" : "may not attend"}`;
    const share = level === 0 ? "no pair" : level === 255 ? "every pair" : `${data.exact ? "" : "about "}${percent(level / 255)} of the pairs`;
    return `queries ${queries}, keys ${keys}: ${share}`;
  }

  #paint() {
    const { rows, columns, levels } = this.data;
    const width = columns.length - 1, height = rows.length - 1;
    this.image = Object.assign(document.createElement("canvas"), { width, height });
    const pixels = this.image.getContext("2d").createImageData(width, height);
    const colours = ramp(), fresh = channels(colour("--mark"));
    levels.forEach((level, at) => {
      pixels.data.set(this.fresh?.[at] ? fresh : colours[level], at * 4);
      pixels.data[at * 4 + 3] = 255;
    });
    this.image.getContext("2d").putImageData(pixels, 0, 0);
  }

  // A small picture without axes.
  static thumbnail(canvas, data) {
    const colours = ramp(), context = canvas.getContext("2d");
    const width = data.columns.length - 1, height = data.rows.length - 1;
    const pixels = context.createImageData(width, height);
    data.levels.forEach((level, at) => pixels.data.set([...colours[level], 255], at * 4));
    canvas.width = width;
    canvas.height = height;
    context.putImageData(pixels, 0, 0);
  }

  repaint() {
    this.image = null;
    this.draw();
  }

  draw() {
    const { canvas, context } = this;
    const scale = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = canvas;
    if (!clientWidth) return;
    canvas.width = Math.round(clientWidth * scale);
    canvas.height = Math.round(clientHeight * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, clientWidth, clientHeight);
    const { width, height } = this.#size();
    this.#axes(width, height);
    if (!this.data) return;
    if (!this.image) this.#paint();
    const { q, k, side } = this.shown, { rows, columns } = this.data;
    const x = (key) => LEFT + ((key - k) / side) * width, y = (query) => TOP + ((query - q) / side) * height;
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, width, height);
    context.clip();
    context.imageSmoothingEnabled = false;
    const left = x(columns[0]), top = y(rows[0]);
    context.drawImage(this.image, left, top, x(columns.at(-1)) - left, y(rows.at(-1)) - top);
    if (this.marks) this.#mark(x, y, width, height, side);
    context.restore();
    if (this.marks) this.#circle(x, y);
    context.strokeStyle = colour("--line");
    context.strokeRect(LEFT - 0.5, TOP - 0.5, width + 1, height + 1);
  }

  #mark(x, y, width, height, side) {
    const { context, marks } = this;
    const size = Math.max(width / side, 3), thick = Math.max(width / side, 2);
    context.fillStyle = colour("--mark");
    context.globalAlpha = 0.75;
    for (const row of marks.rows) context.fillRect(LEFT, y(row + 0.5) - thick / 2, width, thick);
    for (const column of marks.columns) context.fillRect(x(column + 0.5) - thick / 2, TOP, thick, height);
    context.globalAlpha = 1;
    for (const [query, key] of marks.pairs) context.fillRect(x(key + 0.5) - size / 2, y(query + 0.5) - size / 2, size, size);
  }

  // A few pairs are hard to find; circles may reach beyond the mask.
  #circle(x, y) {
    const { context, marks } = this, { q, k, side } = this.shown;
    context.strokeStyle = colour("--mark");
    context.lineWidth = 2;
    for (const [query, key] of marks.pairs.length <= 4 ? marks.pairs : []) {
      if (query < q || key < k || query >= q + side || key >= k + side) continue;
      context.beginPath();
      context.arc(x(key + 0.5), y(query + 0.5), 9, 0, 2 * Math.PI);
      context.stroke();
    }
    context.lineWidth = 1;
  }

  #axes(width, height) {
    const { context } = this, { q, k, side } = this.shown;
    context.fillStyle = colour("--soft");
    context.font = "12px system-ui, sans-serif";
    const step = tick(side);
    context.textAlign = "center";
    for (let at = Math.ceil(k / step) * step; at < k + side; at += step) {
      const place = LEFT + ((at - k) / side) * width;
      if (place < LEFT + width - 52) context.fillText(number(at), Math.max(place, LEFT + 4), TOP - 8);
    }
    context.textAlign = "right";
    for (let at = Math.ceil(q / step) * step; at < q + side; at += step) {
      const place = TOP + ((at - q) / side) * height;
      if (place < TOP + height - 6) context.fillText(number(at), LEFT - 6, Math.max(place + 4, TOP + 10));
    }
    context.textAlign = "left";
    context.fillText("query", 2, TOP - 8);
    context.textAlign = "right";
    context.fillText("key", LEFT + width, TOP - 8);
  }
}

const percent = (share) => `${(share * 100).toPrecision(2)}%`;

function range(borders, at) {
  const first = borders[at], last = borders[at + 1] - 1;
  return first === last ? number(first) : `${number(first)} to ${number(last)}`;
}

function cell(borders, token) {
  if (token < borders[0] || token >= borders.at(-1)) return -1;
  let low = 0, high = borders.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (borders[middle] <= token) low = middle;
    else high = middle;
  }
  return low;
}

// A power of two near a fifth of the side.
function tick(side) {
  return Math.max(2 ** Math.round(Math.log2(side / 5)), 1);
}

// The picture as SVG: runs of cells of one shade, a path for each shade.
export function svgOf(data, title) {
  const { rows, columns, levels } = data, colours = ramp();
  const width = columns.length - 1, height = rows.length - 1;
  const paths = new Map();
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; ) {
      const shade = bucket(levels[row * width + column]);
      let end = column + 1;
      while (end < width && bucket(levels[row * width + end]) === shade) end++;
      if (shade) {
        const [x0, x1, y0, y1] = [columns[column], columns[end], rows[row], rows[row + 1]];
        paths.set(shade, `${paths.get(shade) ?? ""}M${x0} ${y0}H${x1}V${y1}H${x0}z`);
      }
      column = end;
    }
  }
  const [left, right, top, bottom] = [columns[0], columns.at(-1), rows[0], rows.at(-1)];
  const rgb = ([red, green, blue]) => `rgb(${red},${green},${blue})`;
  const escaped = title.replace(/[&<>]/g, (character) => `&#${character.charCodeAt(0)};`);
  const drawn = [...paths].map(([shade, path]) => `<path fill="${rgb(colours[shade])}" d="${path}"/>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="640" height="640" viewBox="${left} ${top} ${right - left} ${bottom - top}"`
    + ` preserveAspectRatio="xMidYMid" shape-rendering="crispEdges"><title>${escaped}</title>`
    + `<rect x="${left}" y="${top}" width="${right - left}" height="${bottom - top}" fill="${rgb(colours[0])}"/>${drawn.join("")}</svg>\n`;
}

const bucket = (level) => (level === 0 || level === 255 ? level : Math.min(254, Math.floor(level / 16) * 16 + 8));
