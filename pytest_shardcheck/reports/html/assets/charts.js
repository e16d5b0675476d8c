"use strict";
// One chart for each rank, or for ranks that are alike: regions, memory, saved activations and
// collectives, one above the other over one axis.

shardcheck.palette = {
  "parameters": "#4c78a8", "unsharded parameters": "#8fbce6", "gradients": "#f58518",
  "optimizer state": "#54a24b", "buffers": "#9fd48b", "saved activations": "#b279a2",
  "communication buffers": "#e45756", "inputs": "#a8a3a0", "temporaries": "#e7c33c",
};
shardcheck.operationColours = {
  all_reduce: "#e45756", all_gather: "#4c78a8", reduce_scatter: "#f58518", broadcast: "#b279a2",
  reduce: "#9d755d", gather: "#72b7b2", scatter: "#eeca3b", all_to_all: "#54a24b", send: "#ff9da6",
  recv: "#d67195", barrier: "#8a8a8a",
};

shardcheck.colours = () => {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "faint", "line", "raised", "bad", "accent", "backward", "optimizer"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
};

shardcheck.layout = (timeline) => {
  const depth = Math.min(3, 1 + timeline.data.regions.reduce((most, region) => Math.max(most, region.depth), 0));
  const strip = timeline.data.regions.length ? 17 * depth : 0;
  const memory = 220;
  const saved = timeline.data.saved.at.length ? 70 : 0;
  const lanes = timeline.groups.length * 22;
  const tops = { regions: 6, memory: 6 + strip + 6 };
  tops.saved = tops.memory + memory + (saved ? 22 : 0);
  tops.lanes = tops.saved + saved + (lanes ? 14 : 0);
  const end = tops.lanes + lanes;
  return { depth, strip, memory, saved, lanes, tops, height: end + 62, slider: end + 30 };
};

// Returns the option of a chart. `ceilings` are those of the ranks that it stands for, `reach` gives
// how far on the axis a call may be from the pointer to be named.
shardcheck.option = (timeline, axis, ceilings, reach) => {
  const { size, palette, operationColours } = shardcheck;
  const colours = shardcheck.colours();
  const layout = shardcheck.layout(timeline);
  const narrow = window.innerWidth < 720;
  const left = narrow ? 58 : 76, right = narrow ? 8 : 16;
  const grid = [], xAxis = [], yAxis = [], series = [];

  const add = (name, top, height, y) => {
    if (!height) return -1;
    const at = grid.length;
    grid.push({ left, right, top, height, id: name });
    xAxis.push({
      gridIndex: at, type: "value", min: 0, max: axis.end, axisLine: { show: false }, axisTick: { show: false },
      axisLabel: { show: false }, splitLine: { show: false },
      axisPointer: { show: true, label: { show: false }, lineStyle: { color: colours.faint, type: "solid" } },
    });
    yAxis.push({ gridIndex: at, axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false }, ...y });
    return at;
  };
  const sizes = (max, splitNumber) => ({
    type: "value", min: 0, max, splitNumber,
    axisLabel: { color: colours.faint, fontSize: 11, formatter: (value) => size(Math.round(value)), hideOverlap: true, showMaxLabel: false },
    splitLine: { show: true, lineStyle: { color: colours.line } },
  });
  const named = (names) => ({
    type: "category", data: names, inverse: true,
    axisLabel: { color: colours.faint, fontSize: 11, width: left - 8, overflow: "truncate", interval: 0 },
  });
  // A ceiling far above the curve would flatten it: the table has it all the same.
  const heightFor = (peak, chart) => {
    const drawn = ceilings.filter((c) => c.chart === chart && c.bytes <= 3 * peak).map((c) => c.bytes);
    return Math.max(peak, ...drawn, 1) * 1.06;
  };
  const marks = (chart, top) => {
    const lines = ceilings.filter((c) => c.chart === chart && c.bytes <= top).flatMap((ceiling) =>
      timeline.data.regions
        .map((region, i) => [region, axis.regions[i]])
        .filter(([region]) => !region.failed && region.region === ceiling.region && region.occurrence === ceiling.occurrence)
        .map(([, [begin, end]]) => ({ begin, end, ceiling, text: `${narrow ? "" : ceiling.text} ${size(ceiling.bytes)}` })));
    // One of equal words: the last, or they would lie over each other.
    const lastEnd = new Map(lines.sort((a, b) => a.end - b.end).map((line) => [line.text, line.end]));
    const data = lines.map(({ begin, end, ceiling, text }) => [
      {
        coord: [begin, ceiling.bytes],
        lineStyle: { color: colours.bad, width: 1.5, type: ceiling.exact ? "solid" : [5, 3] },
        label: { show: lastEnd.get(text) === end, position: "insideEndTop", color: colours.bad, fontSize: 11, formatter: text },
      },
      { coord: [end, ceiling.bytes] },
    ]);
    return { silent: true, symbol: "none", animation: false, data };
  };
  const rectangles = (gridAt, data, shape, extra = {}) => ({
    type: "custom", xAxisIndex: gridAt, yAxisIndex: gridAt, data, silent: true, animation: false, clip: true,
    encode: { x: [0, 1], y: 2 },
    renderItem: (params, api) => {
      const [x0, x1] = [api.coord([api.value(0), api.value(2)])[0], api.coord([api.value(1), api.value(2)])[0]];
      return shape(params, api, x0, x1);
    },
    ...extra,
  });

  const strip = add("regions", layout.tops.regions, layout.strip, {
    type: "value", min: 0, max: layout.depth, inverse: true, axisLabel: { show: false },
  });
  if (strip >= 0) {
    const data = timeline.data.regions.map((region, i) => [...axis.regions[i], Math.min(region.depth, layout.depth - 1)]);
    series.push(rectangles(strip, data, (params, api, x0, x1) => {
      const region = timeline.data.regions[params.dataIndex];
      const area = params.coordSys;
      const from = Math.max(x0, area.x), to = Math.min(Math.max(x1, x0 + 2), area.x + area.width);
      if (to <= from) return null;
      const name = region.failed ? `${region.region} (failed)` : region.region;
      return {
        type: "rect",
        shape: { x: from, y: area.y + 17 * api.value(2), width: to - from, height: 15, r: 3 },
        style: { fill: region.failed ? colours.bad : colours.accent, opacity: 0.22 },
        textConfig: { position: "insideLeft", distance: 5 },
        textContent: { style: { text: to - from > 22 ? name : "", fill: colours.ink, fontSize: 11, width: to - from - 8, overflow: "truncate", ellipsis: "…" } },
      };
    }));
  }

  const memoryTop = heightFor(timeline.peak, "memory");
  const memory = add("memory", layout.tops.memory, layout.memory, sizes(memoryTop, 5));
  const phases = timeline.data.turns
    .map((turn, i) => [axis.turns[i], axis.turns[i + 1] ?? axis.end, 0, turn.phase])
    .filter((phase) => phase[3] !== "forward");
  series.push(rectangles(memory, phases.map((phase) => phase.slice(0, 3)), (params, api, x0, x1) => {
    const area = params.coordSys;
    const shape = echarts.clipRect({ x: x0, y: area.y, width: x1 - x0, height: area.height }, area);
    return shape && { type: "rect", shape, style: { fill: colours[phases[params.dataIndex][3]] } };
  }, { z: 0 }));
  const lastSample = axis.samples.length - 1;
  timeline.columns.forEach(([category, column], i) => {
    const data = column.map((bytes, place) => [axis.samples[place], bytes]);
    if (lastSample >= 0) data.push([axis.end, column[lastSample]]);
    series.push({
      type: "line", name: category, stack: "live", step: "end", data, xAxisIndex: memory, yAxisIndex: memory,
      symbol: "none", silent: true, animation: false, color: palette[category],
      // The last one's line is the outline of all: a peak of one operation is narrower than a pixel.
      lineStyle: { width: i === timeline.columns.length - 1 ? 0.8 : 0, color: colours.faint }, areaStyle: { color: palette[category], opacity: 0.85 },
      markLine: i === 0 ? marks("memory", memoryTop) : undefined,
    });
  });

  const peaks = shardcheck.peaks(timeline, axis);
  series.push({
    type: "custom", xAxisIndex: memory, yAxisIndex: memory, data: peaks, silent: true, animation: false, z: 5,
    encode: { x: 0, y: 1 },
    renderItem: (params, api) => {
      const [cx, cy] = api.coord([api.value(0), api.value(1)]);
      const { x, width } = params.coordSys;
      return cx < x || cx > x + width ? null : { type: "circle", shape: { cx, cy, r: 3.5 }, style: { fill: colours.paper, stroke: colours.ink, lineWidth: 1.5 } };
    },
  });

  const savedBytes = timeline.data.saved.bytes;
  const savedTop = heightFor(Math.max(0, ...savedBytes), "saved");
  const saved = add("saved", layout.tops.saved, layout.saved, sizes(savedTop, 2));
  if (saved >= 0) {
    series.push({
      type: "line", name: "saved", step: "end", xAxisIndex: saved, yAxisIndex: saved, symbol: "none", silent: true,
      animation: false, data: savedBytes.map((bytes, i) => [axis.saved[i], bytes < 0 ? null : bytes]),
      lineStyle: { width: 1, color: palette["saved activations"] }, areaStyle: { color: palette["saved activations"], opacity: 0.35 },
      markLine: marks("saved", savedTop),
    });
  }

  const lanes = add("lanes", layout.tops.lanes, layout.lanes, named(timeline.groups));
  if (lanes >= 0) {
    const kinds = timeline.data.calls.map((call) => timeline.data.kinds[call.kind]);
    const data = kinds.map((kind, i) => [...axis.calls[i], timeline.groups.indexOf(shardcheck.groupOf(kind))]);
    series.push(rectangles(lanes, data, (params, api, x0, x1) => {
      const [, middle] = api.coord([api.value(0), api.value(2)]);
      const shape = echarts.clipRect({ x: x0 - 1, y: middle - 8, width: Math.max(2.5, x1 - x0), height: 16 }, params.coordSys);
      return shape && { type: "rect", shape, style: { fill: operationColours[kinds[params.dataIndex].operation] ?? colours.ink } };
    }));
  }

  Object.assign(xAxis[xAxis.length - 1], {
    axisLine: { show: true, lineStyle: { color: colours.line } },
    axisLabel: {
      show: true, color: colours.faint, fontSize: 11, hideOverlap: true,
      formatter: (value) => (axis.byTime ? shardcheck.duration(value) : shardcheck.number(Math.round(value))),
    },
  });
  const all = xAxis.map((_, i) => i);
  return {
    animation: false, backgroundColor: "transparent", grid, xAxis, yAxis, series,
    axisPointer: { link: [{ xAxisIndex: "all" }], triggerEmphasis: false },
    dataZoom: [
      { type: "inside", xAxisIndex: all, filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, preventDefaultMouseMove: false },
      {
        type: "slider", xAxisIndex: all, filterMode: "none", top: layout.slider, height: 18, left, right, showDetail: false,
        showDataShadow: false, borderColor: colours.line, brushSelect: false, backgroundColor: colours.raised,
      },
    ],
    tooltip: {
      trigger: "axis", confine: false, transitionDuration: 0, backgroundColor: colours.paper, borderColor: colours.line,
      padding: [6, 9], textStyle: { color: colours.ink }, axisPointer: { type: "line" },
      formatter: (hit) => shardcheck.tip(timeline, axis, hit[0].axisValue, reach()),
      // Beside the pointer, not over what it points to; on a phone below the memory.
      position: ([x], _, __, ___, { contentSize, viewSize }) => {
        if (narrow) return [Math.max(0, (viewSize[0] - contentSize[0]) / 2), layout.tops.memory + layout.memory + 6];
        return [x > viewSize[0] / 2 ? x - contentSize[0] - 24 : x + 24, layout.tops.memory];
      },
    },
  };
};

// Where the outermost regions have their peaks.
shardcheck.peaks = (timeline, axis) =>
  timeline.data.regions.slice(0, 200).flatMap((region, i) => {
    if (region.depth || !timeline.totals.length) return [];
    const [begin, end] = axis.regions[i];
    let at = -1;
    axis.samples.forEach((where, place) => {
      if (begin <= where && where <= end && (at < 0 || timeline.totals[place] > timeline.totals[at])) at = place;
    });
    return at < 0 ? [] : [[axis.samples[at], timeline.totals[at]]];
  });

shardcheck.tip = (timeline, axis, value, reach) => {
  const { element, size } = shardcheck;
  const here = timeline.at(axis, value);
  const dot = (colour) => element("i", { style: `background:${colour}` });
  const row = (bytes, ...what) =>
    element("tr", {}, element("td", { className: "size" }, size(bytes)), element("td", {}, ...what));
  const where = [`operation ${shardcheck.number(here.operation)}`, shardcheck.duration(here.timeNs), here.phase, here.regions.join(" › ")];
  const tip = element("div", { className: "tip" }, element("div", {}, where.filter(Boolean).join(" · ")));
  if (timeline.columns.length) {
    const sorted = [...here.categories].sort((a, b) => b[1] - a[1]);
    tip.append(element("h4", {}, `Live: ${size(here.total)} (${shardcheck.number(here.total)} B)`),
      element("table", {}, ...sorted.map(([name, bytes]) => row(bytes, dot(shardcheck.palette[name]), name))));
  }
  if (here.largest.length) {
    tip.append(element("h4", {}, "Largest tensors"), element("table", {}, ...here.largest.map((tensor) => {
      const many = tensor.count > 1 ? `${tensor.count} × ` : "";
      const from = `${tensor.module && ` in ${tensor.module}`}${tensor.line && ` at ${tensor.line}`}`;
      const kind = `${many}${tensor.dtype} [${tensor.shape.join(", ")}] ${tensor.name || tensor.category}${from}`;
      return row(tensor.bytes, dot(shardcheck.palette[tensor.category]), kind);
    })));
  }
  if (here.saved !== null) tip.append(element("h4", {}, `Saved activations: ${size(here.saved)}`));
  const calls = timeline.callsNear(axis, value, reach);
  if (calls.length) {
    tip.append(element("h4", {}, "Collectives"), element("table", {}, ...calls.map((call) =>
      row(call.bytes, dot(shardcheck.operationColours[call.operation] ?? "gray"),
        `${call.operation} in group ${shardcheck.groupOf(call)}${call.module && `, module ${call.module}`}`))));
  }
  return tip;
};
