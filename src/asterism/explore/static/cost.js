// Time and memory against length, compared with dense attention at this machine's prices.

import { Asker, number, short } from "./ask.js";
import { amount, element, logarithmic, table } from "./chart.js";
import { state } from "./state.js";

const askers = { A: new Asker(), B: new Asker() };

const SOURCES = {
  measured: "Prices: measured on this machine.",
  shipped: "Prices: shipped with the library for this class of processor, not measured on this machine; asterism bench --calibrate measures them.",
  lesser: "Prices: shipped with the library for a lesser processor, not measured on this machine; asterism bench --calibrate measures them.",
};

// The answer has as many lengths as fit into its time; asked again, it goes on, since a worker keeps its plans.
export async function showCost(panel, out, before = null) {
  const { text, layer } = panel.question;
  const question = { question: "cost", text, layer, heads: state.heads, dtype: state.dtype, direction: state.direction };
  const reply = await askers[panel.letter].ask(question);
  if (!reply || text !== panel.text) return;
  if (reply.refused && before) return;
  if (reply.refused) {
    out.replaceChildren(element("p", { className: "refused" }, reply.refused.message));
    if (reply.refused.code === "prices-wait") setTimeout(() => showCost(panel, out), 700);
    return;
  }
  const told = reply.answer, { rows, crossing } = told;
  if (before && rows.length <= before) return;
  if (!rows.length) {
    out.replaceChildren(element("p", { className: "refused" }, "No length could be computed in the time for an answer."));
    return;
  }
  const dense = rows[0].dense_kind === "causal" ? "dense causal attention" : "dense attention";
  const points = (name) => rows.map((row) => [row.length, row[name]]);
  const time = [{ name: text.length > 50 ? "this pattern, by tiles" : text, points: points("tiles") }, { name: dense, points: points("dense") }];
  const memory = [{ name: "q, k, v, output and plan", points: points("tiles_bytes") }, { name: "q, k, v, output and a mask of n x n", points: points("mask_bytes") }];
  const last = rows.at(-1), wins = last.tiles < last.dense, times = last.dense / last.tiles;
  const verdict = crossing === rows[0].length ? `Tiles are faster than ${dense} from ${number(crossing)} tokens on, the shortest length here.`
    : crossing ? `Tiles are faster than ${dense} from about ${number(crossing)} tokens on.` : `Tiles are not faster than ${dense} up to ${number(last.length)} tokens.`;
  const factor = wins ? ` At ${number(last.length)} tokens by ${times < 100 ? times.toPrecision(2) : number(times)} times.` : "";
  const ending = told.complete ? "" : ` Longer plans take more time to compile than a page may wait: asterism plan goes on from ${number(told.next)}.`;
  const about = `${told.heads} heads of ${told.head_dim}, ${state.dtype}, ${state.direction === "training" ? "forward and backward" : "forward"}, `
    + `${told.threads} thread${told.threads === 1 ? "" : "s"} of ${told.processor}. ${SOURCES[told.source]} Times are estimates, as auto chooses by.`;
  out.replaceChildren(
    element("h3", {}, "Time"), element("p", { className: "facts verdict" }, verdict + factor + ending),
    logarithmic("Estimated time against tokens", "s", time, crossing && crossing > rows[0].length ? crossing : null, out.clientWidth),
    element("h3", {}, "Memory"), logarithmic("Memory against tokens", "B", memory, null, out.clientWidth),
    element("p", { className: "facts" }, about),
    element("details", {}, element("summary", {}, "As a table"),
      table(["tokens", "density", "tiles", dense, "with plan", "with mask"], rows.map((row) => [number(row.length), `${(100 * row.density).toPrecision(3)}%`,
        amount(row.tiles, "s"), amount(row.dense, "s"), short(row.tiles_bytes, "B"), short(row.mask_bytes, "B")]))));
  if (!told.complete) showCost(panel, out, rows.length);
}
