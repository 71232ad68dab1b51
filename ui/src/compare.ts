// Two slices, or two versions of one, side by side. Pure.

import type { SliceLine, Version } from "./api";

export interface Change {
  name: string;
  before: number | null;
  after: number | null;
  /** "%": shares, of which the change is in points. */
  unit: "" | "%" | "s" | "rows/s";
}

const COUNTS: [string, string][] = [
  ["succeeded", "Answered rows"],
  ["quarantined", "Rows in quarantine"],
  ["invalid_output", "Invalid answers"],
  ["truncated", "Truncated answers"],
  ["degenerate", "Degenerate answers"],
];

/** A report names so many labels, the most frequent ones: of others nothing is known then. */
const MOST_LABELS = 50;

type Counted = Pick<Version, "counts" | "labels">;

/** Counts that either has, then the shares of labels, those that changed most first. */
export function compareVersions(base: Counted, newest: Counted): Change[] {
  const counts = COUNTS.map(([field, name]): Change => {
    return { name, before: base.counts[field] ?? null, after: newest.counts[field] ?? null, unit: "" };
  }).filter(({ name, before, after }) => before || after || name === "Answered rows");
  const names = new Set([...Object.keys(base.labels ?? {}), ...Object.keys(newest.labels ?? {})]);
  const labels = [...names].map((label): Change => {
    return { name: `Label ${label}`, before: share(base, label), after: share(newest, label), unit: "%" };
  });
  return [...counts, ...labels.sort((a, b) => moved(b) - moved(a))];
}

export function compareSlices(base: SliceLine, other: SliceLine): Change[] {
  const [rows, ...rest] = compareVersions(base, other);
  const of = (name: string, unit: Change["unit"], read: (slice: SliceLine) => number | null | undefined): Change => {
    return { name, before: read(base) ?? null, after: read(other) ?? null, unit };
  };
  const measured = [
    of("Tokens in", "", (slice) => slice.tokens.input),
    of("Tokens out", "", (slice) => slice.tokens.output),
    of("Speed", "rows/s", (slice) => slice.rows_per_s),
    of("Engine start", "s", (slice) => slice.seconds.engine_start),
    of("Inference", "s", (slice) => slice.seconds.inference),
    of("GPUs busy", "%", (slice) => slice.gpu_mean),
  ].filter(({ before, after }) => before !== null || after !== null);
  return [...(rows ? [rows] : []), ...measured, ...rest];
}

/** Of a label, which may be called as something that each object has, such as `constructor`. */
export function rowsOf(labels: Record<string, number> | null, label: string): number | undefined {
  return labels !== null && Object.hasOwn(labels, label) ? labels[label] : undefined;
}

function share({ counts, labels }: Counted, label: string): number | null {
  const rows = counts.succeeded;
  if (!rows || labels === null) return null;
  const known = rowsOf(labels, label);
  const isUnknown = known === undefined && Object.keys(labels).length >= MOST_LABELS;
  return isUnknown ? null : (100 * (known ?? 0)) / rows;
}

function moved({ before, after }: Change): number {
  return Math.abs((after ?? 0) - (before ?? 0));
}
