import { describe, expect, it } from "vitest";

import type { SliceLine } from "../src/api";
import { blocksOf, expectedUntil, gridOf, latest, missingKeys } from "../src/calendar";

export function slice(key: string, more: Partial<SliceLine> = {}): SliceLine {
  return {
    slice_key: key, slice_instant: null, run_id: `r-${key}`, map_index: -1, try_number: 1, state: "published",
    started: null, ended: null, archived: false, trial: null, model: null, outcome: "published",
    published_version: 1, fingerprint: null, counts: {}, tokens: {}, seconds: {}, rows_per_s: null,
    tokens_per_s: null, gpu_seconds: null, gpu_mean: null, labels: null, quarantine_reasons: null, advice: [], ...more,
  };
}

function days(from: string, count: number, step = 1): string[] {
  const first = Date.parse(`${from}T00:00:00Z`);
  return Array.from({ length: count }, (_, i) => new Date(first + i * step * 86_400_000).toISOString().slice(0, 10));
}

describe("gridOf", () => {
  it.each([
    [["2026-01-31", "20260201"], "days"],
    [["2026-01-31T05", "2026-01-31 06:00"], "hours"],
    [["2026-01-31", "germany"], "names"],
    [["2026-02-30"], "names"],
    [[], "names"],
  ])("reads %j as %s", (keys, grid) => expect(gridOf(keys)).toBe(grid));
});

describe("missingKeys", () => {
  it("finds the gaps between the first and the last day", () => {
    const all = days("2026-01-28", 8);
    expect(missingKeys(all.filter((_, i) => i !== 2 && i !== 4), "days")).toEqual(["2026-01-30", "2026-02-01"]);
  });
  it("takes a single step of two days for a gap", () => {
    expect(missingKeys(["2025-01-01", "2025-01-03"], "days")).toEqual(["2025-01-02"]);
    expect(missingKeys(["2025-01-01", "2025-01-03", "2025-01-05"], "days")).toEqual([]);
  });
  it("writes them as the others are written", () => {
    expect(missingKeys(["20260130", "20260131", "20260202"], "days")).toEqual(["20260201"]);
    expect(missingKeys(["2026-01-31T22", "2026-01-31T23", "2026-02-01T01"], "hours")).toEqual(["2026-02-01T00"]);
  });
  it("expects a weekly table once a week", () => {
    const all = days("2026-01-05", 6, 7);
    expect(missingKeys(all, "days")).toEqual([]);
    expect(missingKeys(all.filter((_, i) => i !== 3), "days")).toEqual([all[3]]);
  });
  it("expects nothing on weekdays that never had a slice", () => {
    const work = days("2026-01-05", 40).filter((day) => ![0, 6].includes(new Date(day).getUTCDay()));
    expect(missingKeys(work, "days")).toEqual([]);
    expect(missingKeys(work.filter((day) => day !== "2026-01-14"), "days")).toEqual(["2026-01-14"]);
  });
  it("expects slices up to the schedule's next interval, in the DAG's timezone", () => {
    const taipei = slice("2026-01-30", { slice_instant: "2026-01-29T16:00:00+00:00" });
    const end = expectedUntil(latest([taipei]), "days", "2026-02-01T16:00:00Z");
    expect(missingKeys(["2026-01-30"], "days", end)).toEqual(["2026-01-31", "2026-02-01"]);
    expect(missingKeys(["2026-01-30"], "days", null)).toEqual([]);
    expect(expectedUntil(latest([slice("2026-01-30")]), "days", "2026-02-01T16:00:00Z")).toBeNull();
  });
  it("knows of no gap among names", () => expect(missingKeys(["a", "c"], "names")).toEqual([]));
});

describe("blocksOf", () => {
  it("puts each day into its column, the newest month first", () => {
    const slices = latest(["2026-02-02", "2026-01-31"].map((key) => slice(key)));
    const [february, january] = blocksOf(slices, "days", []);
    expect([february?.title, february?.lead, january?.title, january?.lead]).toEqual([
      "February 2026", 6, "January 2026", 3,
    ]);
    expect(january?.cells.length).toBe(31);
    expect(january?.cells[30]?.slice?.slice_key).toBe("2026-01-31");
    expect(january?.cells[29]).toBeNull();
  });
  it("sorts names as people do", () => {
    const [block] = blocksOf(latest(["part 10", "part 9"].map((key) => slice(key))), "names", []);
    expect(block?.cells.map((cell) => cell?.key)).toEqual(["part 9", "part 10"]);
  });
});

describe("latest", () => {
  it("takes the newest run of a slice, and no trial", () => {
    const runs = [slice("a", { trial: "first-10" }), slice("a", { run_id: "new" }), slice("a", { run_id: "old" })];
    expect(latest(runs).get("a")?.run_id).toBe("new");
  });
});
