"use strict";
// Shows the values of a chart under the pointer, or as arrow keys move; without it the tables have them.
(function () {
  const charts = JSON.parse(document.getElementById("values").textContent);
  const LEFT = 54, RIGHT = 10, TOP = 10, BOTTOM = 40;
  const text = (value) => String(Number(value.toPrecision(5)));
  for (const [id, chart] of Object.entries(charts)) {
    const svg = document.getElementById(id);
    const reading = svg.parentElement.querySelector(".reading");
    const [width, height] = svg.getAttribute("viewBox").split(" ").slice(2).map(Number);
    const [low, high] = chart.box;
    const places = [...new Set(chart.lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", TOP);
    cursor.setAttribute("y2", height - BOTTOM);
    let at = -1;
    const show = (number) => {
      at = Math.max(0, Math.min(places.length - 1, number));
      const x = places[at];
      const drawn = LEFT + ((x - low) / (high - low)) * (width - LEFT - RIGHT);
      cursor.setAttribute("x1", drawn);
      cursor.setAttribute("x2", drawn);
      svg.append(cursor);
      const parts = chart.lines.map((line) => {
        const near = line.points.reduce((best, one) => (Math.abs(one[0] - x) < Math.abs(best[0] - x) ? one : best));
        return `${line.name} ${text(near[1])}` + (near[0] === x ? "" : ` (at ${text(near[0])})`);
      });
      reading.textContent = `${chart.x} ${text(x)}: ${parts.join(", ")}`;
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = Math.min(box.width / width, box.height / height);
      const inside = (event.clientX - box.left - (box.width - width * scale) / 2) / scale;
      const x = low + ((inside - LEFT) / (width - LEFT - RIGHT)) * (high - low);
      let best = 0;
      for (let number = 1; number < places.length; number++) {
        if (Math.abs(places[number] - x) < Math.abs(places[best] - x)) best = number;
      }
      show(best);
    });
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }
})();
