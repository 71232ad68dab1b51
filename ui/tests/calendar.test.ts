import { describe, expect, it } from "vitest";

import type { RunWithoutSlice, SliceLine } from "../src/api";
import { backfillRange, blocksOf, expectedUntil, type Grid, gridOf, keyOfRun, latest, missingKeys, namesOf, slicesToCome, splitByGrid, surelyMissing } from "../src/calendar";

export function slice(key: string, more: Partial<SliceLine> = {}): SliceLine {
  return {
    slice_key: key, timezone: null, run_date: null, table: `/t/${key}`, run_id: `r-${key}`, map_index: -1, try_number: 1, state: "published",
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
    [["2026-01-31", "germany", "2026-02-02"], "days"],
    [["2026-01-31T05", "2026-01-31T06", "2026-01-31"], "hours"],
    [["2026-02-30"], "names"],
    [[], "names"],
  ])("reads %j as %s", (keys, grid) => expect(gridOf(keys)).toBe(grid));
});

describe("missingKeys", () => {
  const missing = (keys: string[], grid: Grid, end: number | null = null, timezone: string | null = null) =>
    missingKeys(latest(keys.map((key) => slice(key, { timezone }))), grid, end);
  it("finds the gaps between the first and the last day", () => {
    const all = days("2026-01-28", 8);
    expect(missing(all.filter((_, i) => i !== 2 && i !== 4), "days")).toEqual(["2026-01-30", "2026-02-01"]);
  });
  it("takes a single step of two days for a gap", () => {
    expect(missing(["2025-01-01", "2025-01-03"], "days")).toEqual(["2025-01-02"]);
    expect(missing(["2025-01-01", "2025-01-03", "2025-01-05"], "days")).toEqual([]);
  });
  it("writes them as the others are written", () => {
    expect(missing(["20260130", "20260131", "20260202"], "days")).toEqual(["20260201"]);
    expect(missing(["2026-01-31T22", "2026-01-31T23", "2026-02-01T01"], "hours")).toEqual(["2026-02-01T00"]);
  });
  it("expects a weekly table once a week", () => {
    const all = days("2026-01-05", 6, 7);
    expect(missing(all, "days")).toEqual([]);
    expect(missing(all.filter((_, i) => i !== 3), "days")).toEqual([all[3]]);
  });
  it("expects nothing on weekdays that never had a slice", () => {
    const work = days("2026-01-05", 40).filter((day) => ![0, 6].includes(new Date(day).getUTCDay()));
    expect(missing(work, "days")).toEqual([]);
    expect(missing(work.filter((day) => day !== "2026-01-14"), "days")).toEqual(["2026-01-14"]);
  });
  it("expects a monthly table on its day of each month, however long months are", () => {
    const firsts = [1, 2, 3, 4, 5, 6, 7].map((month) => `2026-0${month}-01`);
    expect(missing(firsts, "days")).toEqual([]);
    expect(missing(firsts.slice(0, 3), "days")).toEqual([]);
    expect(missing(firsts.filter((_, i) => i !== 2), "days", Date.UTC(2026, 8, 1))).toEqual(["2026-03-01", "2026-08-01"]);
    expect(missing(days("2026-01-05", 8, 28).filter((_, i) => i !== 3), "days")).toEqual(["2026-03-30"]);
    expect(missing(["2025-01-01", "2025-04-01", "2025-07-01", "2026-01-01"], "days")).toEqual(["2025-10-01"]);
  });
  it("takes a slice that is out of the rhythm for what it is", () => {
    expect(missing(["2026-01-07", ...days("2026-01-12", 4, 7)], "days")).toEqual([]);
    const twice = [1, 2, 3, 4, 5, 6, 7].flatMap((month) => [`2026-0${month}-01`, `2026-0${month}-15`]);
    expect(missing(twice, "days")).toEqual([]);
  });
  it("expects nothing at hours of the day that never had a slice", () => {
    const open = days("2026-03-02", 5).flatMap((day) => [9, 10, 11, 12].map((hour) => `${day}T${hour}`.replace("T9", "T09")));
    expect(missing(open, "hours")).toEqual([]);
    expect(missing(open.filter((key) => key !== "2026-03-04T10"), "hours")).toEqual(["2026-03-04T10"]);
  });
  it("expects nothing in the hour that clocks leave out", () => {
    const hours = ["2026-03-29T00", "2026-03-29T01", "2026-03-29T03", "2026-03-29T04"];
    expect(missing(hours, "hours", null, "Europe/Berlin")).toEqual([]);
    expect(missing(hours, "hours", null, "UTC")).toEqual(["2026-03-29T02"]);
    expect(missing(["2026-10-25T01", "2026-10-25T03"], "hours", null, "Europe/Berlin")).toEqual(["2026-10-25T02"]);
  });
  it("expects slices up to the schedule's next interval, in the DAG's timezone", () => {
    const taipei = slice("2026-01-30", { run_date: "2026-01-29T16:00:00+00:00" });
    const now = Date.parse("2026-02-02T15:00:00Z");
    const end = expectedUntil(latest([taipei]), "days", "2026-02-01T16:00:00Z", now);
    expect(missing(["2026-01-30"], "days", end)).toEqual(["2026-01-31", "2026-02-01"]);
    expect(missing(["2026-01-30"], "days", null)).toEqual([]);
    const byHand = latest([slice("2026-01-30", { timezone: "Asia/Taipei" })]);
    expect(expectedUntil(byHand, "days", "2026-02-01T16:00:00Z", now)).toBe(Date.UTC(2026, 1, 2));
    expect(expectedUntil(byHand, "days", "2026-02-01T22:30:00Z", now)).toBe(Date.UTC(2026, 1, 2));
  });
  it("expects no slices of days that have not begun, when a schedule begins in months", () => {
    const byHand = latest([slice("2026-01-30", { timezone: "Asia/Taipei" })]);
    const end = expectedUntil(byHand, "days", "2026-05-31T16:00:00Z", Date.parse("2026-02-01T17:00:00Z"));
    expect(missingKeys(byHand, "days", end)).toEqual(["2026-01-31", "2026-02-01", "2026-02-02"]);
  });
  it("takes a slice whose year was mistyped for no end of a gap of centuries", () => {
    const end = Date.parse("2026-01-07");
    const keys = ["0206-01-03", "2026-01-01", "2026-01-02", "2026-01-03", "2026-01-05", "9999-12-31"];
    expect(missing(keys, "days", end)).toEqual(["2026-01-04", "2026-01-06"]);
    expect(missing(keys, "days")).toEqual(["2026-01-04"]);
  });
  it("knows of no gap among names", () => expect(missing(["a", "c"], "names")).toEqual([]));
});

describe("surelyMissing", () => {
  it("leaves out days whose runs may be among those that are not loaded", () => {
    // Of two years, the newest runs: one of them of an old day, again.
    const at = (key: string) => slice(key, { ended: `${key}T01:00:00Z` });
    const runs = [slice("2024-01-05", { ended: "2026-01-13T01:00:00Z" }), ...[12, 11, 8, 7, 6, 5, 4, 3, 2, 1].map((day) => at(`2026-01-${String(day).padStart(2, "0")}`))];
    const keys = missingKeys(latest(runs), "days");
    expect(keys.length).toBeGreaterThan(700);
    expect(surelyMissing(keys, "days", runs)).toEqual(["2026-01-09", "2026-01-10"]);
    expect(surelyMissing(keys, "days", [slice("2026-01-05")])).toEqual([]);
  });
});

describe("backfillRange", () => {
  const range = (slices: SliceLine[], grid: "days" | "hours" | "names", ...keys: string[]) =>
    backfillRange(latest(slices), grid, keys)?.map((date) => date.toISOString().slice(0, 19));
  it("spans the dates as they are written where no slice tells its instant", () => {
    const written = ["2026-01-02T00:00:00", "2026-01-04T23:59:59"];
    expect(range([slice("20260101")], "days", "20260102", "20260104")).toEqual(written);
    expect(range([slice("x")], "days")).toBeUndefined();
    expect(range([slice("x")], "names", "germany")).toBeUndefined();
  });
  it("holds the missing days' intervals and no other, in the DAG's timezone", () => {
    const taipei = slice("2026-01-01", { run_date: "2025-12-31T16:00:00+00:00" });
    const [from = "", to = ""] = range([taipei], "days", "2026-01-03", "2026-01-04") ?? [];
    const starts = [1, 2, 3, 4].map((day) => `2026-01-0${day}T16:00:00`); // of 2026-01-02 to 2026-01-05
    expect(starts.filter((start) => from <= start && start <= to)).toEqual(starts.slice(1, 3));
  });
  it("takes dates for the schedule's where no slice tells its run's", () => {
    const byHand = slice("2026-07-01", { timezone: "America/New_York" });
    expect(range([byHand], "days", "2026-07-03")).toEqual(["2026-07-03T04:00:00", "2026-07-04T03:59:59"]);
  });
  it("takes dates as they are written for a partitioned DAG, as Airflow does", () => {
    const dates = backfillRange(latest([slice("2026-07-01", { timezone: "Asia/Taipei" })]), "days", ["2026-07-03"], true);
    expect(dates?.[0].toISOString()).toBe("2026-07-03T00:00:00.000Z");
  });
  it("takes the clock of each end of the gap, also where all slices are of one", () => {
    const winter = slice("2026-03-28T10", { run_date: "2026-03-28T09:00:00+00:00", timezone: "Europe/Berlin" });
    expect(range([winter], "hours", "2026-03-28T11", "2026-03-29T12")).toEqual([
      "2026-03-28T10:00:00", "2026-03-29T10:15:00",
    ]);
  });
  it("holds an hour that clocks show twice, and the one after it", () => {
    const before = slice("2025-11-01T20", { run_date: "2025-11-02T00:00:00+00:00", timezone: "America/New_York" });
    expect(range([before], "hours", "2025-11-02T01", "2025-11-02T02")).toEqual([
      "2025-11-02T05:00:00", "2025-11-02T07:15:00",
    ]);
  });
  it("begins with the run of the first day, from which Airflow's runs are steps of a timedelta", () => {
    const delta = slice("2026-05-01", { run_date: "2026-05-01T09:30:00+00:00", timezone: "UTC" });
    expect(range([delta], "days", "2026-05-03")?.[0]).toBe("2026-05-03T09:30:00");
  });
});

describe("slicesToCome", () => {
  const run = (run_id: string, run_date: string | null, partition_key: string | null = null): RunWithoutSlice => ({
    run_id, state: "queued", run_date, partition_key,
  });
  const of = (slices: SliceLine[], runs: RunWithoutSlice[], grid: Grid = "days") =>
    [...slicesToCome(latest(slices), grid, runs)].map(([key, { run_id }]) => [key, run_id]);
  // Data of the day before, in a timezone ahead of UTC.
  const known = [slice("20260102", { timezone: "Asia/Taipei", run_date: "2026-01-01T16:00:00Z" })];
  it("names runs by their dates as other runs are named, the newest of a day, and none that has a slice", () => {
    const runs = [
      run("b", "2026-01-03T16:00:00Z"), run("a", "2026-01-03T16:00:00Z"), run("c", "2026-01-01T16:00:00Z"),
    ];
    expect(of(known, runs)).toEqual([["20260104", "b"]]);
  });
  it("takes partitions as they are, and leaves out what is no date", () => {
    const runs = [run("p", null, "20260105"), run("germany", null, "germany"), run("none", null)];
    expect(of([slice("20260102")], runs)).toEqual([["20260105", "p"]]);
  });
  it("is nothing where the dates of runs say nothing of slices", () => {
    const runs = [run("a", "2026-01-03T16:00:00Z")];
    expect(of([slice("2026-01-02")], runs)).toEqual([]);
    expect(of([slice("germany", { run_date: "2026-01-02T00:00:00Z" })], runs, "names")).toEqual([]);
  });
});

describe("keyOfRun", () => {
  const taipei = latest([slice("20260101", { run_date: "2025-12-31T16:00:00+00:00" })]);
  it("is the run's partition, or its date as other keys are written", () => {
    expect(keyOfRun(taipei, "days", { logical_date: null, partition_key: "p" })).toBe("p");
    expect(keyOfRun(taipei, "days", { logical_date: "2026-01-02T16:00:00Z" })).toBe("20260103");
    const byHand = latest([slice("2026-01-01", { timezone: "Asia/Taipei" })]);
    expect(keyOfRun(byHand, "days", { logical_date: "2026-01-03T16:00:00Z" })).toBe("2026-01-04");
  });
  it("is the day of a run by the schedule's clock, also where the clock changes before the next slice", () => {
    const winter = latest([slice("2026-03-07", { run_date: "2026-03-07T11:30:00+00:00", timezone: "America/New_York" })]);
    expect(keyOfRun(winter, "days", { logical_date: "2026-03-08T10:30:00Z" })).toBe("2026-03-08");
    const summer = latest([slice("2026-03-30", { run_date: "2026-03-29T22:00:00+00:00", timezone: "Europe/Berlin" })]);
    expect(keyOfRun(summer, "days", { logical_date: "2026-03-27T23:00:00Z" })).toBe("2026-03-28");
  });
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
    const cells = namesOf(latest(["part 10", "part 9"].map((key) => slice(key))));
    expect(cells.map((cell) => cell.key)).toEqual(["part 9", "part 10"]);
  });
  it("leaves days their calendar when one slice has a name of its own", () => {
    const slices = latest(["by hand", "2026-02-03", "2026-02-01"].map((key) => slice(key)));
    const [dated, named] = splitByGrid(slices, "days");
    expect(missingKeys(dated, "days")).toEqual(["2026-02-02"]);
    expect(blocksOf(dated, "days", []).map((block) => block.title)).toEqual(["February 2026"]);
    expect([...named.keys()]).toEqual(["by hand"]);
    expect(splitByGrid(slices, "names").map((part) => part.size)).toEqual([0, 3]);
  });
});

describe("latest", () => {
  it("takes the newest run of a slice, and no trial", () => {
    const runs = [slice("a", { trial: "first-10" }), slice("a", { run_id: "new" }), slice("a", { run_id: "old" })];
    expect(latest(runs).get("a")?.run_id).toBe("new");
  });
});
