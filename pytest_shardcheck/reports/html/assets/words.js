"use strict";
// Figures in words, and elements: texts of tests become text nodes only, never markup.
const shardcheck = {};

shardcheck.size = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (at < units.length - 1 && Math.abs(bytes) >= 999.95 * 1000 ** at) at += 1;
  return at === 0 ? `${bytes} B` : `${(bytes / 1000 ** at).toFixed(1)} ${units[at]}`;
};

shardcheck.number = (value) => value.toLocaleString("en");

shardcheck.duration = (ns) =>
  ns < 1e6 ? `${(ns / 1e3).toFixed(0)} µs` : ns < 1e9 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e9).toFixed(2)} s`;

// "ranks 0-1, 3", as everywhere in the reports.
shardcheck.ranks = (ranks) => {
  const stretches = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = stretches[stretches.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else stretches.push([rank, rank]);
  }
  const text = stretches.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(", ");
  return `${ranks.length > 1 ? "ranks" : "rank"} ${text}`;
};

shardcheck.element = (tag, properties = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
};

// The last place in an ascending list that is not above a value; -1 before the first.
shardcheck.placeOf = (ascending, value) => {
  let low = 0, high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
};
