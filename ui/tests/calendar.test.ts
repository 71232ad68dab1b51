import { describe, expect, it } from "vitest";

import type { DateWithoutRun, RunWithoutSlice, SliceLine } from "../src/api";
import { backfillRange, blocksOf, type Cell, cellsOf, gridOf, latest, missingKeys, namesOf, slicesToCome, splitByGrid } from "../src/calendar";

export function slice(key: string, more: Partial<SliceLine> = {}): SliceLine {
  return {
    slice_key: key, timezone: null, table: `/t/${key}`, run_id: `r-${key}`, map_index: -1, try_number: 1, state: "published",
    started: null, ended: null, archived: false, trial: null, model: null, outcome: "published",
    published_version: 1, fingerprint: null, counts: {}, tokens: {}, seconds: {}, rows_per_s: null,
    tokens_per_s: null, gpu_seconds: null, gpus_held: null, cost: null, gpu_mean: null, labels: null, quarantine_reasons: null, golden: null, repeat: null, judge: null, gates: null, advice: [], failure: null, upstream: null, ...more,
  };
}

const EARLY = { map_index: -1, state: "queued" as const, started: null, ended: null, failure: null, upstream: null };

function without(...keys: string[]): DateWithoutRun[] {
  return keys.map((key) => ({ slice_key: key, date: `${key}T00:00:00Z`, archived: false }));
}

function cells(...keys: string[]): Cell[] {
  return cellsOf(latest(keys.map((key) => slice(key))), [], new Map());
}

describe("gridOf", () => {
  it.each([
    [["2026-01-31", "20260201"], "days"],
    [["2026-01-31T05", "2026-01-31 06:00"], "hours"],
    [["2026-01-31", "germany"], "names"],
    [["2026-01-31", "germany", "2026-02-02"], "days"],
    [["2026-01-31T05", "2026-01-31T06", "2026-01-31"], "hours"],
    [["2026-02-30"], "names"],
    [[], "names"],
  ])("reads %j as %s", (keys, grid) => expect(gridOf(keys)).toBe(grid));
});

describe("missingKeys", () => {
  const dates = without("2026-03-02", "2026-01-09", "2024-05-05");
  it("are those of dates without a run, and no slice that somebody made otherwise", () => {
    expect(missingKeys(dates, [slice("2026-01-09")], true)).toEqual(["2026-03-02", "2024-05-05"]);
    const archived = dates.map((one) => ({ ...one, archived: true }));
    expect(missingKeys(archived, [], true)).toEqual([]);
  });
  it("leaves out dates whose runs may be among those that are not loaded", () => {
    // The newest runs: one of them of an old day, again.
    const runs = [
      slice("2024-01-05", { ended: "2026-01-13T01:00:00Z" }), slice("2026-01-01", { ended: "2026-01-01T01:00:00Z" }),
    ];
    expect(missingKeys(dates, runs, false)).toEqual(["2026-03-02", "2026-01-09"]);
    expect(missingKeys(dates, [slice("2026-01-05")], false)).toEqual([]);
  });
});

describe("backfillRange", () => {
  it("goes from the first run's date to the last one's", () => {
    const dates = without("2026-01-05", "2026-01-03", "2026-01-01");
    const range = backfillRange(dates, ["2026-01-03", "2026-01-05"]);
    expect(range?.map((date) => date.toISOString())).toEqual(["2026-01-03T00:00:00.000Z", "2026-01-05T00:00:00.000Z"]);
    expect(backfillRange(dates, [])).toBeNull();
  });
});

export function run(run_id: string, slice_key: string | null, more: Partial<RunWithoutSlice> = {}): RunWithoutSlice {
  return { run_id, map_index: -1, state: "queued", slice_key, started: null, ended: null, failure: null, upstream: null, ...more };
}

describe("slicesToCome", () => {
  it("has the newest run of each slice, and none that has a slice, or of which only the run knows it", () => {
    const runs = [run("b", "20260104"), run("a", "20260104"), run("c", "20260102"), run("d", null)];
    const found = slicesToCome([slice("20260102")], runs);
    expect([...found].map(([key, { run_id }]) => [key, run_id])).toEqual([["20260104", "b"]]);
  });
});

describe("blocksOf", () => {
  it("puts each day into its column, the newest month first", () => {
    const [february, january] = blocksOf(cells("2026-02-02", "2026-01-31"), "days");
    expect([february?.title, february?.lead, january?.title, january?.lead]).toEqual([
      "February 2026", 6, "January 2026", 3,
    ]);
    expect(january?.cells.length).toBe(31);
    expect(january?.cells[30]?.slice?.slice_key).toBe("2026-01-31");
    expect(january?.cells[29]).toBeNull();
  });
  it("has missing slices, and those to come", () => {
    const waiting = run("r", "2026-01-03");
    const all = cellsOf(latest([slice("2026-01-01")]), ["2026-01-02"], new Map([["2026-01-03", waiting]]));
    const [january] = blocksOf(all, "days");
    expect(january?.cells.slice(0, 4).map((cell) => cell && [cell.slice !== null, cell.run !== undefined])).toEqual([
      [true, false], [false, false], [false, true], null,
    ]);
  });
  it("sorts names as people do", () => {
    expect(namesOf(cells("part 10", "part 9")).map((cell) => cell.key)).toEqual(["part 9", "part 10"]);
  });
  it("leaves days their calendar when one slice has a name of its own", () => {
    const all = cells("by hand", "2026-02-03", "2026-02-01");
    const [dated, named] = splitByGrid(all, "days");
    expect(blocksOf(dated, "days").map((block) => block.title)).toEqual(["February 2026"]);
    expect(named.map((cell) => cell.key)).toEqual(["by hand"]);
    expect(splitByGrid(all, "names").map((part) => part.length)).toEqual([0, 3]);
  });
});

describe("latest", () => {
  it("takes the newest run of a slice, and no trial", () => {
    const runs = [slice("a", { trial: "first-10" }), slice("a", { ...EARLY, run_id: "new" }), slice("a", { ...EARLY, run_id: "old" })];
    expect(latest(runs).get("a")?.run_id).toBe("new");
  });
});
