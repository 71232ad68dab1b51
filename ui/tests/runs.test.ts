import { describe, expect, it } from "vitest";

import { latest, latestWithFigures, publishedBefore } from "../src/calendar";
import { newestOf, publishedUnder } from "../src/runs";
import { measured } from "../src/trends";
import { slice } from "./calendar.test";

const unfinished = { outcome: null, published_version: null };
const rerun = slice("a", { run_id: "rerun", state: "failed", ...unfinished });
const trial = slice("a", { run_id: "trial", trial: "first-10" });
const first = slice("a", { run_id: "first", counts: { planned: 10, succeeded: 10 } });

describe("a published slice of which a later run publishes nothing", () => {
  it("is known to be published", () => {
    expect(publishedBefore([rerun, trial, first]).get("a")?.run_id).toBe("first");
    expect(publishedUnder(rerun, [rerun, trial, first])?.run_id).toBe("first");
  });
  it("is known to be so by the failure of a run that asked for another, where nobody has the figures any more", () => {
    const failure = { kind: "input", code: "published", sentence: "", advice: [], place: {}, counts: {}, row_texts: [] };
    expect([...publishedBefore([{ ...rerun, failure }])]).toEqual([["a", null]]);
    expect(publishedBefore([{ ...rerun, failure }, first]).get("a")?.run_id).toBe("first");
  });
  it("keeps its figures", () => {
    expect(measured(latestWithFigures([rerun, first]).values()).map(({ run_id }) => run_id)).toEqual(["first"]);
  });
  it("is none where the newest run published, found no rows, or is the only one", () => {
    const empty = slice("a", { state: "empty", outcome: "empty", published_version: null });
    for (const runs of [[first, rerun], [empty, first], [rerun], [rerun, trial]]) {
      expect(publishedBefore(runs).size).toBe(0);
      expect(publishedUnder(runs[0] as typeof first, runs)).toBe(null);
    }
  });
});

describe("a task that is mapped over tables, with slices of the same name", () => {
  const of = (map_index: number, more: Parameters<typeof slice>[1]) => slice("a", { map_index, table: `/${map_index}`, ...more });
  const failed = of(0, { run_id: "second", state: "failed", ...unfinished });
  const runs = [of(1, { run_id: "second" }), failed, of(1, { run_id: "first" }), of(0, { run_id: "first" })];

  it("is shown by the one that failed, and not for what an older run had", () => {
    expect(latest(runs).get("a")).toBe(failed);
    expect(latest([of(0, { run_id: "third" }), ...runs]).get("a")?.state).toBe("published");
  });
  it("has the published slice of the same table", () => {
    expect(publishedBefore(runs).get("a")?.map_index).toBe(0);
    expect(publishedUnder(failed, runs.slice(0, 3))).toBe(null);
  });
});

describe("newestOf", () => {
  it("is of the same table, and the run itself where no other is listed", () => {
    expect(newestOf(first, [trial, rerun, first]).run_id).toBe("rerun");
    expect(newestOf(trial, [rerun, trial]).run_id).toBe("trial");
    expect(newestOf(first, []).run_id).toBe("first");
  });
});
