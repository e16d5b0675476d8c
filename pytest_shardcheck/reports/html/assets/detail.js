"use strict";
// What opens below a test: its failure, its regions, and its charts, drawn when they come into view.

shardcheck.drawn = new Set();
shardcheck.redrawAll = () => shardcheck.drawn.forEach((chart) => chart.redraw());

shardcheck.regionTable = (row) => {
  const { element, size, number } = shardcheck;
  const folded = new Map();
  for (const { rank, occurrence, ...figures } of row.regions) {
    const key = JSON.stringify(figures);
    if (!folded.has(key)) folded.set(key, { figures, ranks: new Set(), occurrences: new Set() });
    folded.get(key).ranks.add(rank);
    folded.get(key).occurrences.add(occurrence);
  }
  if (!folded.size) return element("p", { className: "note" }, "Nothing was measured: no region ended, or the test neither requests shardcheck nor carries a measuring marker.");
  const columns = [["state", size], ["live", size], ["peak", size], ["collectives", number], ["wire", size], ["saved", size]];
  const repeated = new Set(row.regions.filter((its) => its.occurrence).map((its) => its.region));
  const lines = [...folded.values()].map(({ figures, ranks, occurrences }) => {
    const which = repeated.has(figures.region) ? ` #${shardcheck.ranks([...occurrences]).replace(/^ranks? /, "")}` : "";
    return element("tr", {},
      element("td", { className: "text" }, figures.region + which),
      element("td", { className: "text" }, shardcheck.ranks([...ranks])),
      ...columns.map(([name, write]) => {
        const value = figures[name];
        return element("td", { title: value !== null && write === size ? `${number(value)} B` : "" }, value === null ? "–" : write(value));
      }));
  });
  const head = element("tr", {}, element("th", { className: "text" }, "region"), element("th", { className: "text" }, "ranks"), ...columns.map(([name]) => element("th", {}, name)));
  return element("div", { className: "scroll" }, element("table", { className: "regions" }, element("thead", {}, head), element("tbody", {}, ...lines)));
};

shardcheck.legend = (timelines, ceilings) => {
  const { element, palette, operationColours } = shardcheck;
  const entry = (colour, name) => element("span", {}, element("i", { style: `background:${colour}` }), name);
  const used = new Set(timelines.flatMap((timeline) => timeline.columns.map(([name]) => name)));
  const operations = new Set(timelines.flatMap((timeline) => timeline.data.kinds.map((kind) => kind.operation)));
  const phases = new Set(timelines.flatMap((timeline) => timeline.data.turns.map((turn) => turn.phase)));
  return element("div", {},
    element("div", { className: "legend" },
      ...Object.keys(palette).filter((name) => used.has(name)).map((name) => entry(palette[name], name)),
      ...["backward", "optimizer"].filter((phase) => phases.has(phase)).map((phase) => entry(`var(--${phase})`, `${phase} phase`)),
      ceilings.some(({ marker }) => marker.startsWith("max_")) ? element("span", {}, element("i", { className: "dashed" }), "ceiling") : null,
      ceilings.some(({ marker }) => !marker.startsWith("max_")) ? element("span", {}, element("i", { className: "solid" }), "exact value") : null,
      element("span", {}, element("i", { className: "ring" }), "a region's peak")),
    element("div", { className: "legend" },
      ...Object.keys(operationColours).filter((name) => operations.has(name)).map((name) => entry(operationColours[name], name))));
};

// Ranks that did the same under the same ceilings share a chart.
shardcheck.alike = (timelines, row) => {
  const folded = new Map();
  for (const timeline of timelines) {
    const ceilings = row.ceilings.filter((ceiling) => timeline.rank in ceiling.of).map((ceiling) => ({
      ...ceiling, bytes: ceiling.of[timeline.rank], exact: !ceiling.marker.startsWith("max_"),
      text: `${ceiling.marker}(${ceiling.narrowing})`.replace("()", ""),
    }));
    const drawn = ceilings.map(({ of, ...rest }) => rest);
    const key = timeline.likeness + JSON.stringify(drawn);
    if (!folded.has(key)) folded.set(key, { timeline, ceilings: drawn, ranks: [] });
    folded.get(key).ranks.push(timeline.rank);
  }
  return [...folded.values()];
};

shardcheck.Chart = class {
  constructor(at, { timeline, ceilings, ranks }, shared) {
    Object.assign(this, { timeline, ceilings, shared });
    const { element, size } = shardcheck;
    const peak = timeline.columns.length ? ` peak ${size(timeline.peak)} on ${timeline.device}` : "";
    this.place = element("div", { className: "chart", role: "img", ariaLabel: `What ${shardcheck.ranks(ranks)} held over its operations:${peak}` });
    this.place.style.height = `${shardcheck.layout(timeline).height}px`;
    const caption = element("figcaption", {}, shardcheck.ranks(ranks), element("span", {}, ranks.length > 1 ? ` (alike)${peak}` : peak));
    const notes = [];
    if (timeline.data.live_unmeasured) notes.push(`Memory is unmeasured: ${timeline.data.live_unmeasured}.`);
    const left = Object.entries(timeline.data.left_out).map(([what, count]) => `${shardcheck.number(count)} ${what}`);
    if (left.length) notes.push(`Thinned out, peaks kept: ${left.join(", ")} are not drawn.`);
    at.append(element("figure", {}, caption, ...notes.map((note) => element("p", { className: "note" }, note)), this.place));
    this.watch = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.draw(), { rootMargin: "300px" });
    this.watch.observe(this.place);
    shardcheck.drawn.add(this);
  }

  draw() {
    this.watch.disconnect();
    if (this.chart) return;
    this.chart = echarts.init(this.place, null, { renderer: "canvas" });
    this.redraw();
    this.chart.on("datazoom", () => {
      const { start, end } = this.chart.getOption().dataZoom[0];
      this.shared.zoom(start, end, this);
    });
    this.place.dataset.drawn = "true";
  }

  redraw() {
    if (!this.chart) return;
    const axis = this.timeline.axis(this.shared.byTime);
    this.chart.resize();
    const reach = () => (axis.end * (this.shared.end - this.shared.start)) / 100 / 150;
    this.chart.setOption(shardcheck.option(this.timeline, axis, this.ceilings, reach), { notMerge: true });
    this.zoom(this.shared.start, this.shared.end);
  }

  zoom(start, end) {
    this.chart?.dispatchAction({ type: "dataZoom", start, end }, { silent: true });
  }

  dispose() {
    this.watch.disconnect();
    this.chart?.dispose();
    shardcheck.drawn.delete(this);
  }
};

// Fills a cell with all that is known of a test; resolves to its charts.
shardcheck.detail = async (row, at) => {
  const { element } = shardcheck;
  if (row.failure) at.append(element("pre", { className: "failure" }, row.failure));
  at.append(shardcheck.regionTable(row));
  const scripts = [...document.querySelectorAll(`script[data-world="${row.at}"]`)];
  const timelines = await Promise.all(scripts.map(shardcheck.unpack));
  const missing = [...Array(row.size).keys()].filter((rank) => !timelines.some((timeline) => timeline.rank === rank));
  if (missing.length && (timelines.length || row.regions.length || row.outcome !== "skipped")) {
    at.append(element("p", { className: "note" }, `${shardcheck.ranks(missing)}: no timeline. The test is not followed (it neither requests shardcheck nor carries a measuring marker), or the rank ended before its test did.`));
  }
  if (!timelines.length) return [];

  const folded = shardcheck.alike(timelines, row);
  const shared = {
    byTime: false, start: 0, end: 100,
    zoom(start, end, from) {
      Object.assign(shared, { start, end });
      charts.forEach((chart) => chart !== from && chart.zoom(start, end));
    },
  };
  const first = folded[0].timeline;
  const button = (text, act) => element("button", { type: "button", on: { click: act } }, text);
  const show = (begin, end) => {
    const axis = first.axis(shared.byTime);
    const around = 0.02 * (end - begin);
    shared.zoom(Math.max(0, (100 * (begin - around)) / axis.end), Math.min(100, (100 * (end + around)) / axis.end), null);
  };
  const whole = button("whole test", () => shared.zoom(0, 100, null));
  const regions = first.data.regions.map((region, i) => [region, i]).sort((a, b) => a[0].begin - b[0].begin).slice(0, 12);
  const repeated = new Set(first.data.regions.filter((region) => region.occurrence).map((region) => region.region));
  const toRegion = regions.map(([region, i]) =>
    button(`${region.region}${repeated.has(region.region) ? ` #${region.occurrence}` : ""}`, () => show(...first.axis(shared.byTime).regions[i])));
  const axisOf = (text, byTime) => {
    const made = button(text, () => {
      shared.byTime = byTime;
      [...tools.querySelectorAll("[aria-pressed]")].forEach((one) => one.setAttribute("aria-pressed", String(one === made)));
      shared.zoom(0, 100, null);
      charts.forEach((chart) => chart.redraw());
    });
    made.setAttribute("aria-pressed", String(!byTime));
    return made;
  };
  const tools = element("div", { className: "tools" }, whole, ...toRegion, element("span", { className: "gap" }), axisOf("operations", false), axisOf("time", true));
  at.append(tools, shardcheck.legend(timelines, row.ceilings));
  const charts = folded.map((one) => new shardcheck.Chart(at, one, shared));
  return charts;
};
