// The certificate of a schedule, with its witnesses on the mask, and reach layer by layer.

import { Asker, bytes } from "./ask.js";
import { element } from "./chart.js";
import { Mask } from "./mask.js";
import { state } from "./state.js";

const asker = new Asker(), pictures = new Asker();
const find = (id) => document.getElementById(id);
const WORDS = new Map([[true, "yes"], [false, "no"], [null, "not decided"]]);
const REACH = "Reach";

export class Proof {
  constructor(changed) {
    Object.assign(this, { changed, told: null, timer: 0 });
    this.mask = new Mask(find("proof-mask"), () => {}, (text) => this.looked(text));
    find("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    find("step").addEventListener("click", () => this.step());
    find("reach").addEventListener("input", (event) => {
      this.stop();
      this.layer(Number(event.target.value));
    });
    find("conditions").addEventListener("change", (event) => {
      this.stop();
      state.shown = event.target.value;
      this.changed();
      this.render();
    });
  }

  looked(text) {
    find("proof-readout").textContent = state.shown === REACH ? "" : text;
  }

  async show(text) {
    this.stop();
    const question = { question: "certificate", text, length: state.proof };
    find("proof-of").textContent = "of the pattern above";
    const reply = await asker.ask(question);
    if (!reply || text !== state.a || question.length !== state.proof) return;
    find("proof-refused").textContent = reply.refused?.message ?? "";
    find("proof-out").hidden = find("lines").hidden = !!reply.refused;
    this.told = reply.answer ?? null;
    if (!this.told) return;
    Object.assign(this, { text, first: bytes(this.told.reach.first) });
    find("lines").textContent = this.told.lines.join("\n");
    const choices = [...this.told.conditions.map((one) => [one.name, WORDS.get(one.holds), one.shows]),
      [REACH, "", "which pairs are connected after so many layers"]];
    if (!choices.some(([name]) => name === state.shown)) state.shown = choices[0][0];
    find("conditions").replaceChildren(find("conditions").firstElementChild, ...choices.map(([name, holds, shows]) => element("label", {},
      element("input", { type: "radio", name: "condition", value: name, checked: name === state.shown }), ` ${name}${holds && `: ${holds}`}`, element("small", {}, shows))));
    find("reach").max = this.told.reach.layers;
    this.render();
  }

  async render() {
    const { told } = this;
    if (!told) return;
    if (state.shown === REACH) {
      this.layer(Math.min(state.reach, told.reach.layers));
      return;
    }
    const condition = told.conditions.find((one) => one.name === state.shown);
    const whole = [0, told.length];
    const question = { question: "picture", text: this.text, length: told.length, layer: condition.pattern, head: condition.head, rows: whole, columns: whole, cells: 320 };
    const reply = await pictures.ask(question);
    if (!reply?.answer?.levels || this.told !== told || state.shown !== condition.name) return;
    this.mask.fresh = null;
    this.mask.marks = condition;
    this.mask.show({ ...reply.answer, levels: bytes(reply.answer.levels) }, told.length);
    this.mask.canvas.ariaLabel = `Mask at ${told.length} tokens with marks: ${condition.shows}`;
    this.mask.canvas.dataset.marks = condition.rows.length + condition.columns.length + condition.pairs.length;
    find("reach-out").textContent = `0 of ${told.reach.layers}`;
  }

  // Reach after so many layers; what this layer connects is orange.
  layer(number) {
    const { told, first } = this;
    if (!told) return;
    state.reach = number;
    if (state.shown !== REACH) {
      state.shown = REACH;
      for (const radio of document.querySelectorAll("#conditions input")) radio.checked = radio.value === REACH;
    }
    const { cells, side, layers, shares } = told.reach;
    const borders = Array.from({ length: cells + 1 }, (_, at) => Math.min(at * side, told.length));
    const after = (layer) => first.map((one, at) => (one === 0 ? 0 : one <= layer ? 255 : 0));
    const levels = number === 0 ? first.map((_, at) => (Math.floor(at / cells) === at % cells ? (side === 1 ? 255 : 60) : 0)) : after(number);
    this.mask.marks = null;
    this.mask.fresh = number === 0 ? null : first.map((one) => (one === number ? 1 : 0));
    this.mask.show({ rows: borders, columns: borders, levels, exact: true }, told.length);
    this.mask.canvas.ariaLabel = `Pairs connected after ${number} layers`;
    find("reach").value = number;
    const share = number === 0 ? 1 / told.length : shares[Math.min(number, shares.length) - 1];
    const ending = number === layers && told.reach.followed > layers ? ", and more layers follow" : "";
    // Without self loops a connection can be lost again, so the picture may hold more than the share says.
    const kept = told.conditions[1].holds ? "" : "; drawn: after at most so many";
    find("reach-out").textContent = share === undefined ? `${number} of ${layers}` : `${number} of ${layers}: ${(100 * share).toPrecision(3)}% of the pairs${ending}${kept}`;
    this.changed();
  }

  step() {
    this.stop();
    const { layers } = this.told.reach;
    this.layer(state.shown === REACH && state.reach < layers ? state.reach + 1 : 0);
  }

  play() {
    if (!this.told) return;
    const { layers } = this.told.reach;
    this.layer(state.shown === REACH && state.reach < layers ? state.reach : 0);
    find("play").textContent = "Pause";
    this.timer = setInterval(() => {
      if (state.reach >= layers) this.stop();
      else this.layer(Math.min(layers, state.reach + Math.ceil(layers / 60)));
    }, Math.max(90, Math.min(700, 6000 / layers)));
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    find("play").textContent = "Play";
  }
}
