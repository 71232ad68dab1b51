// What changed from one version of a slice to another. Pure.

import type { Version } from "./api";

export interface Change {
  name: string;
  before: number;
  after: number;
}

const COUNTS: [string, string][] = [
  ["succeeded", "Answered rows"],
  ["quarantined", "Rows in quarantine"],
  ["invalid_output", "Invalid answers"],
  ["truncated", "Truncated answers"],
];

/** Counts that either has, then labels, those that changed most first. */
export function diffOf(base: Version, newest: Version): Change[] {
  const counts = COUNTS.map(([field, name]) => ({
    name,
    before: base.counts[field] ?? 0,
    after: newest.counts[field] ?? 0,
  })).filter(({ name, before, after }) => before || after || name === "Answered rows");
  const labels = [...new Set([...Object.keys(base.labels ?? {}), ...Object.keys(newest.labels ?? {})])].map((label) => ({
    name: `Label ${label}`,
    before: base.labels?.[label] ?? 0,
    after: newest.labels?.[label] ?? 0,
  }));
  return [...counts, ...labels.sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before))];
}
