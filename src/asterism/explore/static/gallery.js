// Published patterns, and the windows of today's models, each with a small picture.

import { Asker, bytes } from "./ask.js";
import { element } from "./chart.js";
import { Mask } from "./mask.js";

// `choose(entry, letter)` puts a pattern into panel A or B.
export function showGallery(entries, out, choose) {
  const pictures = [];
  for (const group of new Set(entries.map((entry) => entry.group))) {
    const cards = entries.filter((entry) => entry.group === group).map((entry) => card(entry, choose, pictures));
    out.append(element("h3", {}, group), element("ul", { className: "cards" }, ...cards));
  }
  draw(pictures);
}

function card(entry, choose, pictures) {
  const canvas = element("canvas", { width: 74, height: 74 });
  canvas.setAttribute("aria-hidden", "true");
  pictures.push([canvas, entry]);
  const button = (text, letter) => {
    const made = element("button", { type: "button" }, text);
    made.ariaLabel = `${text}: ${entry.name}`;
    made.addEventListener("click", () => choose(entry, letter));
    return made;
  };
  const link = element("a", { href: entry.link, target: "_blank", rel: "noreferrer noopener" }, entry.link.replace("https://arxiv.org/abs/", "arXiv "));
  return element("li", {}, canvas,
    element("div", {}, element("h4", {}, entry.name), element("code", {}, entry.text), element("p", {}, `${entry.source} `, link)),
    element("div", { className: "row" }, button("Show", "A"), button("Compare", "B")));
}

async function draw(pictures) {
  const asker = new Asker();
  for (const [canvas, { text, length, layer }] of pictures) {
    const whole = [0, length];
    const reply = await asker.ask({ question: "picture", text, length, layer, head: 0, rows: whole, columns: whole, cells: 74 });
    if (reply?.answer?.levels) Mask.thumbnail(canvas, { ...reply.answer, levels: bytes(reply.answer.levels) });
  }
}
