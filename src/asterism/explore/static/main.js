// The page: two panels, and what is computed of them, all as the state says.

import { Asker, settled } from "./ask.js";
import { element } from "./chart.js";
import { showCost } from "./cost.js";
import { showGallery } from "./gallery.js";
import { Panel } from "./panel.js";
import { Proof } from "./proof.js";
import { ModelReading } from "./reading.js";
import { read, state, write } from "./state.js";

const find = (id) => document.getElementById(id);
const SECTIONS = ["cost", "proof", "gallery", "keys"];
let panels = [], proof, reading, entries = [], galleryShown = false;

const remember = settled(120, write);
const costs = settled(420, computeCosts);
const proofs = settled(420, () => find("proof").open && proof.show(state.a));

function computeCosts() {
  if (!find("cost").open) return;
  const shown = panels.filter((panel) => !panel.root.hidden);
  const outs = shown.map(() => element("section"));
  const old = find("cost-out");
  while (old.children.length > shown.length) old.lastElementChild.remove();
  while (old.children.length < shown.length) old.append(outs.pop());
  shown.forEach((panel, at) => showCost(panel, old.children[at]));
}

function changed(what, view) {
  if (what === "view") {
    state.view = view;
    for (const panel of panels) {
      panel.mask.view = view;
      panel.mask.draw();
      if (!panel.root.hidden) panel.refresh();
    }
  } else {
    costs();
    if (what === "text") proofs();
  }
  remember();
}

function layout() {
  const isTwo = state.b !== null;
  panels[1].root.hidden = !isTwo;
  panels[0].root.classList.toggle("alone", !isTwo);
  panels[0].name(isTwo ? "Pattern A" : "Pattern");
  find("compare").setAttribute("aria-pressed", String(isTwo));
  document.documentElement.dataset.theme = state.theme;
}

function show() {
  layout();
  for (const id of ["length", "theme", "heads", "dtype", "direction"]) find(id).value = state[id === "length" ? "n" : id];
  find("proof-length").value = state.proof;
  const open = new Set(state.open.split(" "));
  for (const id of SECTIONS) find(id).open = open.has(id);
  panels[0].restore();
  if (state.b !== null) panels[1].restore();
  costs();
  proofs();
}

function repaint() {
  for (const mask of [...panels.map((panel) => panel.mask), proof.mask, reading.mask]) mask.repaint();
}

function listen() {
  find("length").addEventListener("input", (event) => {
    if (!event.target.checkValidity()) {
      trouble(`tokens must be a whole number from 1 to 1,048,576, got ${event.target.value || "none"}`);
      return;
    }
    trouble("");
    state.n = Number(event.target.value);
    state.view = null;
    for (const panel of panels) panel.mask.view = null;
    for (const panel of panels) if (!panel.root.hidden) panel.refresh();
    remember();
  });
  find("compare").addEventListener("click", () => {
    state.b = state.b === null ? "longformer()" : null;
    show();
    remember();
  });
  find("theme").addEventListener("change", (event) => {
    state.theme = event.target.value;
    layout();
    repaint();
    remember();
  });
  for (const id of ["heads", "dtype", "direction"]) {
    find(id).addEventListener("input", (event) => {
      if (!event.target.checkValidity()) return;
      state[id] = id === "heads" ? Number(event.target.value) : event.target.value;
      costs();
      remember();
    });
  }
  find("proof-length").addEventListener("change", (event) => {
    state.proof = Number(event.target.value);
    proofs();
    remember();
  });
  for (const id of SECTIONS) {
    find(id).addEventListener("toggle", () => {
      state.open = SECTIONS.filter((one) => find(one).open).join(" ");
      if (id === "cost") costs();
      if (id === "proof") proofs();
      if (id === "gallery" && find(id).open && !galleryShown) {
        galleryShown = true;
        showGallery(entries, find("gallery-out"), choose);
      }
      remember();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  window.addEventListener("hashchange", () => {
    read();
    show();
    reading.restore();
  });
}

function choose(entry, letter) {
  Object.assign(state, { [letter.toLowerCase()]: entry.text, [`layer${letter}`]: entry.layer, [`head${letter}`]: 0, view: null });
  if (letter === "A") state.n = entry.length;
  show();
  remember();
  window.scrollTo({ top: 0 });
  panels[letter === "A" ? 0 : 1].input.focus({ preventScroll: true });
}

function trouble(message) {
  find("trouble").hidden = !message;
  find("trouble").textContent = message;
}

async function start() {
  const reply = await new Asker().ask({ question: "start" });
  if (reply.refused) {
    trouble(reply.refused.message);
    return;
  }
  const { vocabulary, gallery } = reply.answer;
  entries = gallery;
  read();
  panels = ["A", "B"].map((letter) => new Panel(letter, vocabulary, changed));
  panels[1].name("Pattern B");
  find("panels").append(...panels.map((panel) => panel.root));
  proof = new Proof(remember);
  find("words").append(...vocabulary.flatMap((word) => [
    element("dt", {}, `${word.name}(${word.arguments.join(", ")})`), element("dd", {}, word.meaning)]));
  reading = new ModelReading(remember);
  listen();
  show();
  reading.start();
}

start();
