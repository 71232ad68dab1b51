// The runs of a task that failed and that nothing made good since. Pure.

import type { FailureLine, RunWithoutSlice, SliceLine } from "./api";
import { slicesToCome } from "./calendar";

export interface FailedRun {
  /** Null where only the run would know it. */
  key: string | null;
  run: string;
  map: number;
  hasSlice: boolean;
  at: string | null;
  failure: FailureLine | null;
}

/**
 * @param slices  all runs of slices, the newest first.
 * @param latest  the newest run of each slice.
 * @param runs    that have not come to their slice, the newest first.
 */
export function failedRuns(slices: SliceLine[], latest: Map<string, SliceLine>, runs: RunWithoutSlice[]): FailedRun[] {
  const ofSlices = [...latest.values()].map((line) => ({ ...line, key: line.slice_key, hasSlice: true }));
  // One that nobody knows the slice of is made good, as far as can be told, by a later run that came to any.
  const newest = Date.parse(slices[0]?.started ?? "") || 0;
  const isNewer = ({ slice_key, started }: RunWithoutSlice) => slice_key === null && Date.parse(started ?? "") > newest;
  const before = [...slicesToCome(slices, runs).values(), ...runs.filter(isNewer)];
  const withoutSlices = before.map((run) => ({ ...run, key: run.slice_key, hasSlice: false }));
  return [...ofSlices, ...withoutSlices]
    .filter(({ state }) => state === "failed")
    .map(({ key, hasSlice, run_id, map_index, started, ended, failure }) => {
      return { key, hasSlice, run: run_id, map: map_index, at: ended ?? started, failure };
    })
    .sort((a, b) => Date.parse(b.at ?? "") - Date.parse(a.at ?? ""));
}
