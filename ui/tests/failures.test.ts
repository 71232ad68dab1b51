import { describe, expect, it } from "vitest";

import { latest } from "../src/calendar";
import { failedRuns } from "../src/failures";
import { run, slice } from "./calendar.test";

const at = (day: number) => `2026-01-${String(day).padStart(2, "0")}T00:00:00Z`;
const failed = (key: string, day: number) => slice(key, { state: "failed", ended: at(day), run_id: `${key}-${day}` });

describe("failedRuns", () => {
  it("are of slices whose newest run failed, the last slice first, whenever it ended", () => {
    const slices = [slice("c", { started: at(9) }), failed("a 9", 8), failed("a 10", 7), failed("c", 6), slice("a 9")];
    expect(failedRuns(slices, latest(slices), []).map(({ key }) => key)).toEqual(["a 10", "a 9"]);
  });
  it("are also runs that failed before their slice, as long as no other run has it", () => {
    const slices = [slice("a", { started: at(5) })];
    const before = { state: "failed" as const, started: at(3), ended: at(3) };
    const runs = [run("later", null, { ...before, started: at(6), ended: at(6) }), run("of-b", "b", before), run("of-a", "a", before), run("of-any", null, before), run("waits", "c")];
    const found = failedRuns(slices, latest(slices), runs);
    expect(found.map(({ run_id, key, has_slice }) => [run_id, key, has_slice])).toEqual([
      ["later", null, false], ["of-b", "b", false],
    ]);
  });
});
