"use strict";
// Values under the pointer, and tables sorted by a click: the page says all of it without, too.
(() => {
  const tip = document.createElement("div"), line = document.createElement("div");
  tip.className = "tip";
  line.className = "cross";
  document.body.append(line, tip);
  const hide = () => { tip.hidden = line.hidden = true; };
  const shown = (y) => y === null ? "–" : String(Number(y.toPrecision(4)));
  hide();

  const show = (svg, panels, event) => {
    const frame = svg.getBoundingClientRect();
    const across = (event.clientX - frame.left) / frame.width;
    const up = 1 - (event.clientY - frame.top) / frame.height;
    const panel = panels.find(({ box: [left, low, right, high] }) =>
      left <= across && across <= right && low <= up && up <= high);
    if (!panel) return hide();
    const [left, low, right, high] = panel.box, [first, last] = panel.limits;
    const at = first + (across - left) / (right - left) * (last - first);
    const all = panel.series.flatMap(({ x }) => x);
    const x = all.reduce((near, each) => Math.abs(each - at) < Math.abs(near - at) ? each : near);
    const rows = panel.series.filter((each) => each.x.includes(x));
    tip.replaceChildren(`${panel.label} ${shown(x)}`, ...rows.map((each) => {
      const row = document.createElement("span"), mark = document.createElement("i");
      mark.style.background = each.colour;
      row.append(mark, `${each.name} ${shown(each.y[each.x.indexOf(x)])}`);
      return row;
    }));
    tip.hidden = line.hidden = false;
    const place = frame.left + frame.width * (left + (x - first) / (last - first) * (right - left));
    line.style.left = `${place}px`;
    line.style.top = `${frame.top + frame.height * (1 - high)}px`;
    line.style.height = `${frame.height * (high - low)}px`;
    const beyond = place + tip.offsetWidth + 24 > document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, beyond ? place - tip.offsetWidth - 12 : place + 12)}px`;
    tip.style.top = `${frame.top + frame.height * (1 - high)}px`;
  };
  for (const svg of document.querySelectorAll("svg[data-values]")) {
    const panels = JSON.parse(svg.dataset.values);
    svg.addEventListener("pointermove", (event) => show(svg, panels, event));
    svg.addEventListener("pointerdown", (event) => show(svg, panels, event));
    svg.addEventListener("pointerleave", hide);
  }
  addEventListener("scroll", hide, { passive: true });

  // "2 h 5 min", "3.1 s" as seconds; "2.10 ± 0.14 %" as its mean; what is no number comes last.
  const units = { h: 3600, min: 60, s: 1 };
  const numberOf = (text) => {
    const times = [...text.matchAll(/([\d.]+) (h|min|s)\b/g)];
    if (times.length) return times.reduce((sum, [, n, unit]) => sum + n * units[unit], 0);
    return parseFloat(text.replace(/,/g, ""));
  };
  const compare = (one, other) => {
    const [a, b] = [one, other].map(numberOf);
    if (isNaN(a) && isNaN(b)) return one.localeCompare(other);
    return isNaN(a) ? 1 : isNaN(b) ? -1 : a - b;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const text = (row) => row.cells[column].textContent.trim();
        const missing = (row) => isNaN(numberOf(text(row))) && column > 0 ? 1 : 0;
        body.append(...[...body.rows].sort((a, b) =>
          missing(a) - missing(b) || sign * compare(text(a), text(b))));
      });
    });
  }
})();
