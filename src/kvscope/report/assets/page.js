"use strict";
// Tables can be sorted by any column. Without this script they are as complete, in the order in which they were made.
// The page's language and its title in the tab follow the switch. Without this script each part still says its own.
for (const choice of document.querySelectorAll("input[name=language]")) {
  const follow = () => {
    if (!choice.checked) return;
    document.documentElement.lang = choice.value;
    document.title = choice.dataset.title;
  };
  choice.addEventListener("change", follow);
  follow();
}
const words = document.getElementById("sort-words");
const number = (text) => {
  const found = text.replace(/,/g, "").replace(/\u2212/g, "-").match(/[-+]?\d+(?:\.\d+)?/);
  return found ? Number(found[0]) : NaN;
};
const compare = (one, other) => {
  const numbers = [number(one), number(other)];
  if (numbers.every(Number.isNaN)) return one.localeCompare(other);
  if (numbers.some(Number.isNaN)) return Number.isNaN(numbers[0]) ? 1 : -1;
  return numbers[0] - numbers[1];
};
const sort = (body, index, direction, original) => {
  const rows = original.filter((row) => !row.classList.contains("total"));
  if (direction !== "none") {
    const keys = new Map(rows.map((row) => [row, row.cells[index].innerText.trim()]));
    const isNumber = body.parentElement.tHead.rows[0].cells[index].classList.contains("n");
    rows.sort((one, other) => {
      const order = isNumber ? compare(keys.get(one), keys.get(other)) : keys.get(one).localeCompare(keys.get(other));
      return direction === "ascending" ? order : -order;
    });
  }
  body.append(...rows, ...original.filter((row) => row.classList.contains("total")));
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  if (original.length < 5 || body.querySelector(".total") || !table.querySelector(".n, [id*='def-']")) continue;
  [...table.tHead.rows[0].cells].forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(words.content.cloneNode(true));
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" };
      const direction = next[head.getAttribute("aria-sort") || "none"];
      for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
      if (direction !== "none") head.setAttribute("aria-sort", direction);
      sort(body, index, direction, original);
    });
    head.append(" ", button);
  });
}
