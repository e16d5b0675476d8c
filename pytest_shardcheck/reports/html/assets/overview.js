"use strict";
// The table of all tests: search, sorting, and what opens below a test.
(() => {
  const { element, size, number, duration } = shardcheck;
  const { about, rows } = JSON.parse(document.getElementById("worlds").textContent);
  const severity = ["failed", "error", "xpassed", "skipped", "xfailed", "passed"];
  const percent = (use) => `${(100 * use).toFixed(use < 0.0995 || Math.abs(use - 1) < 0.01 ? 1 : 0)} %`;
  // A column's name, its figure or text, how it is written, and how it is sorted at first.
  const columns = [
    { name: "test", text: true, of: (row) => row.nodeid },
    { name: "outcome", text: true, of: (row) => severity.indexOf(row.outcome), write: (_, row) => row.outcome },
    { name: "ranks", of: (row) => row.size, write: number },
    { name: "state", of: (row) => row.state, write: size },
    { name: "peak", of: (row) => row.peak, write: size },
    { name: "ceiling used", of: (row) => row.use, write: percent },
    { name: "collectives", of: (row) => row.collectives, write: number },
    { name: "wire", of: (row) => row.wire, write: size },
    { name: "saved", of: (row) => row.saved, write: size },
    { name: "time", of: (row) => row.seconds * 1e9, write: duration },
  ];
  const body = document.querySelector("#tests > tbody");
  const head = document.querySelector("#tests > thead > tr");
  const search = document.getElementById("search");
  const select = document.getElementById("sort");
  const sorted = { by: columns[1], down: false };
  const opened = new Map(); // a row's number, to its charts
  rows.forEach((row, at) => Object.assign(row, { at, words: `${row.nodeid} ${row.world} ${row.outcome}`.toLowerCase() }));

  const label = (row) => {
    const cut = row.nodeid.split("::")[0].lastIndexOf("/") + 1;
    // Long names break where their parts meet.
    const parts = row.nodeid.slice(cut).split(/(?<=::)|(?=\[)/);
    const broken = parts.flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
    return [element("span", { className: "folder" }, row.nodeid.slice(0, cut)), element("wbr"), ...broken];
  };

  const cell = (column, row) => {
    const value = column.of(row);
    if (column === columns[0]) {
      return element("td", { className: "text name" },
        element("button", { type: "button", ariaExpanded: "false" }, ...label(row)));
    }
    if (value === null) return element("td", { className: "empty" }, "–");
    const classes = [];
    if (column.text) classes.push("text", "outcome", row.outcome);
    if (column.name === "ceiling used") classes.push(value > 1 ? "over" : value > 0.95 ? "near" : "");
    const shown = element("td", { className: classes.join(" "), title: typeof value === "number" && column.write === size ? `${number(value)} B` : "" }, column.write(value, row));
    if (!column.text) shown.dataset.label = column.name;
    return shown;
  };

  const line = (row) => {
    row.line ??= element("tr", { className: "test", id: `test-${row.at}`, on: { click: () => toggle(row) } }, ...columns.map((column) => cell(column, row)));
    return row.line;
  };

  const compare = (a, b) => {
    const [x, y] = [sorted.by.of(a), sorted.by.of(b)];
    if ((x === null) !== (y === null)) return x === null ? 1 : -1; // what was not measured comes last
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return (sorted.down ? -order : order) || a.at - b.at;
  };

  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => row.words.includes(word))).sort(compare);
    body.replaceChildren(...found.flatMap((row) => (row.detail ? [line(row), row.detail] : [line(row)])));
    document.getElementById("none").hidden = found.length > 0 || rows.length === 0;
    for (const [i, th] of [...head.children].entries()) {
      if (columns[i] === sorted.by) th.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
    select.value = String(columns.indexOf(sorted.by));
  };

  const sortBy = (column) => {
    if (sorted.by === column) sorted.down = !sorted.down;
    else Object.assign(sorted, { by: column, down: !column.text });
    show();
  };

  const toggle = (row) => {
    const open = !row.detail;
    if (open) {
      row.detail = element("tr", { className: "detail" }, element("td", { colSpan: columns.length }));
      line(row).after(row.detail);
      opened.set(row.at, shardcheck.detail(row, row.detail.firstChild));
    } else {
      opened.get(row.at).then((charts) => charts.forEach((chart) => chart.dispose()));
      opened.delete(row.at);
      row.detail.remove();
      row.detail = null;
    }
    line(row).classList.toggle("open", open);
    line(row).querySelector("button").ariaExpanded = String(open);
    if (open) history.replaceState(null, "", `#${encodeURIComponent(row.nodeid)}`);
  };

  const counts = severity.map((outcome) => [outcome, rows.filter((row) => row.outcome === outcome).length]).filter(([, count]) => count);
  document.getElementById("about").textContent = Object.entries(about).map(([name, value]) => `${name} ${value}`).join(" · ");
  document.getElementById("counts").textContent =
    `${rows.length} world tests${counts.length ? `: ${counts.map(([outcome, count]) => `${count} ${outcome}`).join(", ")}` : ""}`;
  head.append(...columns.map((column) =>
    element("th", { className: column.text ? "text" : "", scope: "col" },
      element("button", { type: "button", on: { click: () => sortBy(column) } }, column.name))));
  select.append(...columns.map((column, i) => element("option", { value: String(i) }, column.name)));
  select.addEventListener("change", () => sortBy(columns[Number(select.value)]));
  search.addEventListener("input", show);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  show();

  const redraw = () => Promise.all([...opened.values()]).then((all) => all.flat().forEach((chart) => chart.redraw()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let pause = 0;
  addEventListener("resize", () => { clearTimeout(pause); pause = setTimeout(redraw, 80); });
  // Paper is white, and narrower: charts are drawn for it at once, before it is laid out.
  matchMedia("print").addEventListener("change", () => shardcheck.redrawAll());
  const asked = decodeURIComponent(location.hash.slice(1));
  const linked = asked && rows.find((row) => row.nodeid === asked);
  if (linked) { toggle(linked); line(linked).scrollIntoView(); }
})();
