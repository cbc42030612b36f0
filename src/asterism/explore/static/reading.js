// What a model reads in a text: mass per block on a canvas, a line for each head, and the keys that a query reads most.

import { Asker, bytes, number, settled } from "./ask.js";
import { element, table } from "./chart.js";
import { Mask, svgOf } from "./mask.js";
import { save, savePng } from "./save.js";
import { state } from "./state.js";

const CELLS = 256;
const MOST_CHARACTERS = 150_000;
const find = (id) => document.getElementById(id);
const percent = (share) => (share >= 0.9995 ? "100%" : share < 0.0001 ? (share ? "< 0.01%" : "0%") : `${(100 * share).toPrecision(2)}%`);
// Control characters would do something, or nothing, where the text is shown.
const plain = (text) => (text.trim() ? text : text.replace(/ /g, "\u2423").replace(/\n/g, "\u23ce\n").replace(/\t/g, "\u21e5"))
  .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\u00b7");
const span = ({ first, last }) => (first === last ? number(first) : `${number(first)} to ${number(last)}`);
const named = (word, many, block) => `${block.first === block.last ? word : many} ${span(block)}`;

export class ModelReading {
  // `changed()` is told when the state was changed.
  constructor(changed) {
    Object.assign(this, { changed, told: null, shown: null, known: null, reads: new Asker(), pictures: new Asker(), keys: new Asker() });
    const describe = (cell, queries, keys) => this.#describe(cell, queries, keys);
    this.mask = new Mask(find("read-mask"), (view) => this.#moved(view), (text) => (find("read-readout").textContent = text),
      { picked: (query) => this.#ask(query), describe });
    this.redraw = settled(60, () => this.#draw());
    find("read").addEventListener("click", () => this.#typed());
    find("read-file").addEventListener("click", () => this.#reads(null));
    find("read-text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#typed();
    });
    for (const [id, name] of [["read-layer", "layerM"], ["read-head", "headM"]]) {
      find(id).addEventListener("change", (event) => {
        state[name] = Number(event.target.value);
        this.render();
        this.changed();
      });
    }
    find("read-query").addEventListener("input", (event) => event.target.checkValidity() && this.#ask(Number(event.target.value)));
    find("read-in").addEventListener("click", () => this.mask.zoom(0.5));
    find("read-away").addEventListener("click", () => this.mask.zoom(2));
    find("read-all").addEventListener("click", () => this.mask.go(this.mask.whole));
    find("read-svg").addEventListener("click", () => this.mask.data && save("attention.svg", "image/svg+xml", svgOf(this.mask.data, this.title)));
    find("read-png").addEventListener("click", () => this.mask.data && savePng("attention.png", this.mask.canvas, this.title));
  }

  get title() {
    const head = state.headM ? `head ${state.headM - 1}` : "mean of all heads";
    return `${this.known.name}: attention of layer ${state.layerM}, ${head}, ${number(this.told.tokens)} ${this.known.unit}`;
  }

  // Ask what the model is; without one, nothing is shown.
  async start() {
    const reply = await new Asker().ask({ question: "model" });
    if (reply.refused?.code === "no-model") return;
    find("reading").hidden = false;
    if (reply.refused) {
      this.#refuse(reply.refused.message);
      find("read").disabled = true;
      return;
    }
    const { name, unit, limit, trained, file } = (this.known = reply.answer);
    const context = trained === null ? "" : `, trained on rows of ${number(trained)}`;
    find("reading-of").textContent = `${name}: at most ${number(limit)} ${unit}${context}`;
    find("read-file").hidden = !file;
    if (file) find("read-file").textContent = `Read ${file.name}`;
    if (state.t === null && file) state.file = 1;
    this.restore();
  }

  // Show what the state says.
  restore() {
    if (!this.known) return;
    find("read-text").value = state.t ?? "";
    this.mask.view = state.viewM;
    if (state.file && this.known.file) this.#reads(null, false);
    else if (state.t !== null) this.#reads(state.t, false);
  }

  #typed() {
    const text = find("read-text").value;
    if (text.length > MOST_CHARACTERS) {
      this.#refuse(`the text has ${number(text.length)} characters, but at most ${number(MOST_CHARACTERS)} can be sent: put it into a file, and start with --text FILE`);
      return;
    }
    this.#reads(text);
  }

  // Read a text, or without one the file.
  async #reads(text, isNew = true) {
    Object.assign(state, { t: text, file: text === null ? 1 : 0 });
    if (isNew) Object.assign(state, { viewM: null, query: null });
    this.changed();
    this.#refuse("");
    find("read-status").textContent = "reading\u2026";
    const begun = performance.now();
    const clock = setInterval(() => (find("read-status").textContent = `reading\u2026 ${Math.round((performance.now() - begun) / 1000)} s`), 1000);
    const reply = await this.reads.ask({ question: "read", ...(text === null ? {} : { text }) });
    clearInterval(clock);
    if (!reply) return;
    find("read-status").textContent = "";
    if (reply.refused) {
      this.told = null;
      find("read-out").hidden = true;
      this.#refuse(reply.refused.message);
      return;
    }
    this.told = reply.answer;
    this.mask.view = state.viewM;
    const { tokens, front, block, length } = this.told;
    const own = front ? ` after ${number(front)} global tokens of the model` : "";
    const each = block === 1 ? "each by itself" : `in blocks of ${number(block)}`;
    find("read-status").textContent = `${number(tokens)} ${this.known.unit}${own}, ${each}`;
    find("read-out").hidden = false;
    find("read-query").max = length - 1;
    if (state.query === null || state.query >= length) state.query = length - 1;
    this.render();
  }

  #refuse(message) {
    find("read-refused").textContent = message;
    if (message) find("read-text").setAttribute("aria-invalid", "true");
    else find("read-text").removeAttribute("aria-invalid");
  }

  // Show the layer and head that the state says.
  render() {
    const { layers } = this.told;
    state.layerM = Math.min(state.layerM, layers.length - 1);
    const layer = layers[state.layerM], heads = layer.heads.length;
    state.headM = Math.min(state.headM, heads);
    fill(find("read-layer"), layers.map((one, at) => `${at}: ${cut(one.text ?? one.note)}`), state.layerM);
    fill(find("read-head"), ["mean of all", ...layer.heads.map((_, at) => `${at} of ${heads}`)], state.headM);
    find("read-note").hidden = !layer.note;
    find("read-note").textContent = layer.note ?? "";
    this.#heads(layer);
    if (layer.note) {
      this.mask.show(null, this.told.length);
      find("read-keys").replaceChildren();
      find("read-mine").textContent = "";
      return;
    }
    this.#draw();
    this.#ask(state.query);
  }

  #heads(layer) {
    if (layer.note) {
      find("read-heads").replaceChildren(element("p", { className: "facts" }, layer.note));
      return;
    }
    const left = layer.heads.some((head) => head.left > 0.001);
    const columns = [...layer.parts.map(cut), "distance", "spread", ...(left ? ["unread"] : [])];
    const tokens = (value) => (value < 10 ? value.toPrecision(2) : number(value));
    const rows = layer.heads.map((head, at) => [at, ...head.shares.map(percent), tokens(head.distance), tokens(head.spread), ...(left ? [percent(head.left)] : [])]);
    const made = table(["head", ...columns], rows);
    Object.assign(made, { role: "region", ariaLabel: "Heads of this layer" });
    made.querySelectorAll("tbody tr").forEach((row, at) => row.classList.toggle("chosen", at + 1 === state.headM));
    const parts = layer.parts.length ? "Shares of a query's attention in each part of the pattern; pairs in two parts count twice. " : "";
    const rest = left ? " Unread: weight of sinks, and of queries without keys." : "";
    find("read-heads").replaceChildren(made, element("p", { className: "facts" },
      `${parts}Distance: mean, in ${this.known.unit}. Spread: over how many ${this.known.unit} a block's attention spreads, by its entropy.${rest}`));
  }

  get #choice() {
    return { reading: this.told.reading, layer: state.layerM, head: state.headM - 1 };
  }

  async #draw() {
    if (!this.told || this.told.layers[state.layerM].note) return;
    const { q, k, side } = state.viewM ?? { q: 0, k: 0, side: 2 ** 40 };
    const range = (start) => [Math.floor(start), Math.ceil(start + side)];
    const asked = JSON.stringify([this.#choice, state.viewM]);
    const reply = await this.pictures.ask({ question: "mass", ...this.#choice, rows: range(q), columns: range(k), cells: CELLS });
    if (!reply || !this.told || asked !== JSON.stringify([this.#choice, state.viewM])) return;
    if (reply.refused) {
      this.#refuse(reply.refused.message);
      return;
    }
    const told = reply.answer, raw = bytes(told.shares);
    this.shares = new Float32Array(raw.buffer);
    this.mask.show({ ...told, levels: bytes(told.levels) }, this.told.length);
    this.mask.canvas.ariaLabel = `${this.title}: queries down, keys across`;
    Object.assign(this.mask.canvas.dataset, { reading: this.told.reading, layer: state.layerM, head: state.headM });
    find("read-darkest").textContent = `${percent(told.darkest)} of a query's attention, or more`;
    const size = told.rows[1] - told.rows[0];
    const cell = size > 1 ? `One cell holds ${number(size)} queries and ${number(told.columns[1] - told.columns[0])} keys. ` : "One cell is one pair. ";
    find("read-about").textContent = `${cell}Shades are logarithmic, over two powers of ten; the lightest is in the pattern and hardly read.`;
  }

  #describe(cell, queries, keys) {
    const many = (words) => words.includes("to"), of = (word, plural, words) => `${many(words) ? plural : word} ${words}`;
    const asked = of("query", "queries", queries), read = of("key", "keys", keys);
    if (!this.mask.data.levels[cell]) return `${asked}, ${read}: not in the pattern`;
    return `${asked} give${many(queries) ? "" : "s"} ${percent(this.shares[cell])} of ${many(queries) ? "their" : "its"} attention to ${read}`;
  }

  #moved(view) {
    state.viewM = view;
    this.redraw();
    this.changed();
  }

  // The keys that a query's block reads most.
  async #ask(query) {
    if (!this.told) return;
    state.query = Math.min(query, this.told.length - 1);
    if (document.activeElement !== find("read-query")) find("read-query").value = state.query;
    this.changed();
    const asked = JSON.stringify([this.#choice, state.query]);
    const reply = await this.keys.ask({ question: "keys", ...this.#choice, query: state.query });
    if (!reply?.answer || !this.told || asked !== JSON.stringify([this.#choice, state.query])) return;
    const { query: mine, keys, blocks } = reply.answer;
    const text = (block) => [block.own && element("small", {}, block.own), block.text && element("code", { className: "read", dir: "ltr" }, plain(block.text))].filter(Boolean);
    find("read-mine").replaceChildren(`${named("Query", "Queries", mine)} read${mine.first === mine.last ? "s" : ""} ${number(blocks)} block${blocks === 1 ? "" : "s"} of keys. The text there:`, ...text(mine));
    find("read-keys").replaceChildren(...keys.map((block) => element("li", {}, `${named("key", "keys", block)}: ${percent(block.share)}`, ...text(block))));
    find("read-keys").dataset.query = state.query;
    const middle = Math.min((mine.first + mine.last) / 2, this.told.length - 1);
    this.mask.marks = { rows: [middle], columns: [], pairs: [] };
    this.mask.draw();
  }
}

const cut = (text) => (text.length > 34 ? `${text.slice(0, 32)}\u2026` : text);

function fill(select, texts, chosen) {
  select.disabled = texts.length === 1;
  select.replaceChildren(...texts.map((text, at) => element("option", { value: at }, text)));
  select.value = chosen;
}
