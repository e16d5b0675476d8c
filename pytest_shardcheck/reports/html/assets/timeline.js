"use strict";
// A rank's timeline: unpacked when it is first asked for, and what to know of a place in it.

shardcheck.unpack = async (script) => {
  const bytes = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new shardcheck.Timeline(JSON.parse(await new Response(stream).text()));
};

shardcheck.Timeline = class {
  constructor(data) {
    this.data = data;
    this.rank = data.rank;
    this.device = data.device;
    this.columns = Object.entries(data.memory[data.device] ?? {});
    this.totals = data.at.map((_, place) => this.columns.reduce((sum, [, column]) => sum + column[place], 0));
    this.peak = this.totals.reduce((most, total) => Math.max(most, total), 0);
    const ends = [...data.regions.map((region) => [region.end, region.end_ns]), ...data.at.map((at, i) => [at, data.time_ns[i]])];
    this.end = Math.max(data.operations, 1);
    this.endNs = ends.reduce((most, [, ns]) => Math.max(most, ns), 1);
    this.groups = [...new Set(data.kinds.map(shardcheck.groupOf))].sort();
  }

  // What makes ranks alike to a reader: all but the clock.
  get likeness() {
    const { rank, start_ns, time_ns, turns, regions, calls, saved, kinds, ...rest } = this.data;
    return JSON.stringify([
      rest,
      turns.map((turn) => [turn.phase, turn.at]),
      regions.map((region) => [region.region, region.begin, region.end, region.failed]),
      calls.map((call) => [call.kind, call.at]),
      kinds.map((kind) => [kind.operation, shardcheck.groupOf(kind), kind.bytes, kind.module]),
      [saved.at, saved.bytes],
    ]);
  }

  // Where things lie on the axis that is chosen: operations, or time in ns.
  axis(byTime) {
    const { data } = this;
    const saved = data.saved;
    return {
      byTime,
      end: byTime ? this.endNs : this.end,
      samples: byTime ? data.time_ns : data.at,
      saved: byTime ? saved.time_ns : saved.at,
      calls: data.calls.map((call) => (byTime ? [call.time_ns, call.returned_ns] : [call.at, call.at])),
      turns: data.turns.map((turn) => (byTime ? turn.time_ns : turn.at)),
      regions: data.regions.map((its) => (byTime ? [its.begin_ns, its.end_ns] : [its.begin, its.end])),
    };
  }

  at(axis, value) {
    const sample = Math.max(0, shardcheck.placeOf(axis.samples, value));
    const saved = shardcheck.placeOf(axis.saved, value);
    const turn = shardcheck.placeOf(axis.turns, value);
    const inside = this.data.regions.filter((_, i) => axis.regions[i][0] <= value && value <= axis.regions[i][1]);
    const held = saved < 0 ? -1 : this.data.saved.bytes[saved];
    return {
      operation: this.data.at[sample] ?? 0,
      timeNs: this.data.time_ns[sample] ?? 0,
      total: this.totals[sample] ?? 0,
      categories: this.columns.map(([name, column]) => [name, column[sample]]).filter(([, size]) => size),
      largest: this.largest(sample),
      phase: turn < 0 ? "" : this.data.turns[turn].phase,
      regions: inside.sort((a, b) => a.depth - b.depth).map((region) => region.region),
      saved: held < 0 ? null : held,
    };
  }

  largest(sample) {
    const spans = this.data.alive[this.device] ?? [];
    return spans
      .filter(([, first, last]) => first <= sample && sample <= last)
      .map(([tensor, , , count]) => ({ ...this.data.tensors[tensor], count }))
      .sort((a, b) => b.bytes - a.bytes)
      .slice(0, 5);
  }

  // The calls nearest to a place, within a reach.
  callsNear(axis, value, reach) {
    const near = [];
    axis.calls.forEach(([begin, end], i) => {
      const away = value < begin ? begin - value : Math.max(0, value - end);
      if (away <= reach) near.push([away, i]);
    });
    near.sort((a, b) => a[0] - b[0]);
    return near.slice(0, 3).map(([, i]) => this.data.kinds[this.data.calls[i].kind]);
  }
};

shardcheck.groupOf = (call) => call.axes[0] ?? call.group;
