// A pattern with its mask, degrees and what can be saved of it.

import { Asker, bytes, number, settled } from "./ask.js";
import { element, histogram } from "./chart.js";
import { Editor } from "./editor.js";
import { Mask, svgOf } from "./mask.js";
import { save, savePng } from "./save.js";
import { state } from "./state.js";

const STEPS = [64, 128, 256, 384];
const MOST_CHARACTERS = 20_000;
const QUICK = 300;
// Cells along a side: a coarse picture at once, then finer ones, as long as one took less than so many milliseconds.

export class Panel {
  // `letter` is "A" or "B"; `changed(what)` is told when the text, or the view, was changed by hand.
  constructor(letter, words, changed) {
    const root = document.getElementById("panel").content.cloneNode(true).firstElementChild;
    const find = (selector) => root.querySelector(selector);
    Object.assign(this, { letter, changed, root, find, quick: new Asker(), slow: new Asker(), counts: new Asker() });
    const input = find(".text"), list = find(".completions");
    Object.assign(input, { id: `text-${letter}` });
    list.id = `completions-${letter}`;
    input.setAttribute("aria-controls", list.id);
    input.setAttribute("aria-describedby", `refused-${letter}`);
    find(".refused").id = `refused-${letter}`;
    find(".name").htmlFor = input.id;
    this.input = input;
    this.#choices({ layers: [{ heads: 1 }], layer: 0 });
    this.editor = new Editor(input, list, words, () => this.#typed());
    this.mask = new Mask(find(".mask"), (view) => changed("view", view), (text) => (find(".readout").textContent = text));
    this.refine = settled(140, () => this.#fine());
    this.count = settled(260, () => this.#degrees());
    for (const kind of ["layer", "head"]) {
      find(`.${kind}`).addEventListener("change", (event) => {
        state[kind + letter] = Number(event.target.value);
        this.refresh();
        changed("choice");
      });
    }
    find(".in").addEventListener("click", () => this.mask.zoom(0.5));
    find(".out").addEventListener("click", () => this.mask.zoom(2));
    find(".all").addEventListener("click", () => this.mask.go(this.mask.whole));
    find(".svg").addEventListener("click", () => this.told && save("mask.svg", "image/svg+xml", svgOf(this.mask.data, this.title)));
    find(".png").addEventListener("click", () => this.told && savePng("mask.png", this.mask.canvas, this.title));
    find(".python").addEventListener("click", () => this.told && save("pattern.py", "text/x-python", this.told.python));
  }

  get text() {
    return state[this.letter.toLowerCase()] ?? "";
  }

  get title() {
    return `${this.told.schedule}, ${number(state.n)} tokens`;
  }

  // What a question about this panel says.
  get question() {
    return { text: this.text, length: state.n, layer: state[`layer${this.letter}`], head: state[`head${this.letter}`] };
  }

  name(text) {
    this.find(".name").textContent = text;
  }

  // Show what the state says.
  restore() {
    if (this.input.value !== this.text) this.input.value = this.text;
    this.mask.view = state.view;
    this.refresh();
  }

  #typed() {
    if (this.input.value.length > MOST_CHARACTERS) {
      const message = `the text has ${number(this.input.value.length)} characters: at most ${number(MOST_CHARACTERS)} are read here`;
      this.#refuse({ message, place: null });
      return;
    }
    state[this.letter.toLowerCase()] = this.input.value;
    this.refresh();
    this.changed("text");
  }

  async refresh() {
    this.refine();
    this.count();
    await this.#draw(this.quick, STEPS[0]);
  }

  async #fine() {
    for (const cells of STEPS.slice(1)) {
      const begun = performance.now();
      const isDrawn = await this.#draw(this.slow, cells);
      if (!isDrawn || performance.now() - begun > QUICK) return;
    }
  }

  // Whether the picture was drawn: not where it is refused, or no longer what the state says.
  async #draw(asker, cells) {
    const { q, k, side } = state.view ?? { q: 0, k: 0, side: 2 ** 40 };
    const part = (start) => [Math.floor(start), Math.ceil(start + side)];
    const question = { question: "picture", ...this.question, rows: part(q), columns: part(k), cells };
    const key = this.#key;
    const reply = await asker.ask(question);
    if (!reply || key !== this.#key || (this.drawn?.key === key && this.drawn.cells > cells)) return false;
    if (reply.refused) {
      if (cells === STEPS[0]) this.#refuse(reply.refused);
      return false;
    }
    this.#accept(reply.answer);
    this.drawn = { cells, key };
    this.mask.canvas.dataset.text = question.text;
    this.mask.canvas.dataset.length = question.length;
    this.mask.canvas.dataset.cells = cells;
    return true;
  }

  // What a picture is of.
  get #key() {
    return JSON.stringify([this.question, state.view]);
  }

  #refuse({ message, place }) {
    this.told = null;
    this.drawn = null;
    this.find(".refused").textContent = message;
    this.input.setAttribute("aria-invalid", "true");
    this.mask.canvas.classList.add("stale");
    const at = this.find(".place");
    at.hidden = !place;
    if (place) {
      const [start, stop] = place, text = this.text;
      at.replaceChildren(text.slice(Math.max(start - 30, 0), start), element("mark", {}, text.slice(start, stop) || " "),
        text.slice(stop, stop + 30), ` (character ${start + 1})`);
    }
  }

  #accept(told) {
    this.told = told;
    this.find(".refused").textContent = "";
    this.find(".place").hidden = true;
    this.input.removeAttribute("aria-invalid");
    this.mask.canvas.classList.remove("stale");
    this.#choices(told);
    const note = this.find(".note");
    note.hidden = !told.note;
    note.textContent = told.note ?? "";
    if (told.note) {
      this.mask.show(null, state.n);
      this.find(".about").textContent = "";
      return;
    }
    this.mask.show({ ...told, levels: bytes(told.levels) }, Math.max(state.n, told.queries));
    this.mask.canvas.ariaLabel = `Mask of ${told.schedule} over ${number(state.n)} tokens, queries down, keys across`;
    const side = told.rows[1] - told.rows[0];
    const cell = side > 1 ? `One cell is about ${number(side)} x ${number(told.columns[1] - told.columns[0])} pairs. ` : "One cell is one pair. ";
    const how = told.exact || side === 1 ? "" : "Shades between are estimated; none and all are exact. ";
    const open = told.undecided ? `${number(told.undecided)} cells would take too long to decide and are estimated.` : "";
    this.find(".about").textContent = cell + how + open;
  }

  #choices(told) {
    const layers = told.layers, head = this.find(".head"), layer = this.find(".layer");
    const short = (text) => (text.length > 42 ? `${text.slice(0, 40)}\u2026` : text);
    const options = layers.length === 1 ? ["every layer"] : layers.map((one, at) => `${at}: ${short(one.text)}`);
    fill(layer, options, told.layer);
    const heads = layers[told.layer].heads;
    fill(head, heads === 1 ? ["all heads"] : Array.from({ length: heads }, (_, at) => `${at} of ${heads}`), told.head ?? 0);
  }

  async #degrees() {
    const question = { question: "degrees", ...this.question };
    const asked = JSON.stringify(question);
    const reply = await this.counts.ask(question);
    if (!reply || asked !== JSON.stringify({ question: "degrees", ...this.question })) return;
    const out = this.find(".degrees");
    if (reply.refused) {
      out.replaceChildren(this.told && !this.told.note ? element("p", { className: "facts" }, `Keys per query: ${reply.refused.message}`) : "");
      return;
    }
    const { queries, counted, minimum, mean, maximum, bars } = reply.answer;
    const some = counted < queries ? ` (${number(counted)} of ${number(queries)} queries counted, evenly spread)` : "";
    const average = mean.toLocaleString("en-US", { maximumFractionDigits: 1 });
    const read = minimum === maximum ? `Every query reads ${number(minimum)} key${minimum === 1 ? "" : "s"}`
      : `A query reads ${number(minimum)} to ${number(maximum)} keys, ${average} on average`;
    const facts = `${read}${some}. `
      + `Density: ${counted < queries ? "about " : ""}${((100 * mean) / state.n).toPrecision(3)}% of the pairs.`;
    out.replaceChildren(element("h3", {}, "Keys per query"), element("p", { className: "facts" }, facts), minimum < maximum ? histogram(bars, out.clientWidth) : "");
  }
}

function fill(select, texts, chosen) {
  select.disabled = texts.length === 1;
  const same = select.options.length === texts.length && texts.every((text, at) => select.options[at].text === text);
  if (!same) select.replaceChildren(...texts.map((text, at) => element("option", { value: at }, text)));
  select.value = chosen;
}
