// The runs of a task that failed and that nothing made good since. Pure.

import type { RunWithoutSlice, SliceLine } from "./api";
import { byName, slicesToCome } from "./calendar";

/** A run that failed, as lists tell it. */
export type Failing = Pick<SliceLine | RunWithoutSlice, "failure" | "map_index" | "run_id" | "upstream"> & { has_slice: boolean };

export interface FailedRun extends Failing {
  /** Null where only the run would know it. */
  key: string | null;
  at: string | null;
}

/**
 * By their slices, the last first; before them those of which only the run would know its slice.
 *
 * @param slices  all runs of slices, the newest first.
 * @param latest  the newest run of each slice.
 * @param runs    that have not come to their slice, the newest first.
 */
export function failedRuns(slices: SliceLine[], latest: Map<string, SliceLine>, runs: RunWithoutSlice[]): FailedRun[] {
  const ofSlices = [...latest.values()].map((line) => ({ ...line, key: line.slice_key, has_slice: true }));
  // One that nobody knows the slice of is made good, as far as can be told, by a later run that came to any.
  const newest = Date.parse(slices[0]?.started ?? "") || 0;
  const isNewer = ({ slice_key, started }: RunWithoutSlice) => slice_key === null && Date.parse(started ?? "") > newest;
  const before = [...slicesToCome(slices, runs).values(), ...runs.filter(isNewer)];
  const withoutSlices = before.map((run) => ({ ...run, key: run.slice_key, has_slice: false }));
  return [...ofSlices, ...withoutSlices]
    .filter(({ state }) => state === "failed")
    .map(({ key, has_slice, run_id, map_index, started, ended, failure, upstream }) => {
      return { key, has_slice, run_id, map_index, at: ended ?? started, failure, upstream };
    })
    .sort(byDay);
}

function byDay(a: FailedRun, b: FailedRun): number {
  if (a.key === null || b.key === null) {
    return Number(a.key !== null) - Number(b.key !== null) || (Date.parse(b.at ?? "") || 0) - (Date.parse(a.at ?? "") || 0);
  }
  return byName(b.key, a.key);
}
