// What changes from slice to slice, as series. Pure.

import type { SliceLine } from "./api";
import { rowsOf } from "./compare";
import { cost } from "./format";
import { hasResult } from "./runs";

export interface Series {
  name: string;
  color: string;
  values: (number | null)[];
}

export interface Trend {
  title: string;
  unit: string;
  kind: "line" | "bar" | "area";
  series: Series[];
}

const BLUE = "#0072B2";
const ORANGE = "#E69F00";
const GREEN = "#009E73";
const RED = "#D55E00";
const PINK = "#CC79A7";
/** Okabe and Ito's, and greys for what is rarest. */
const PALETTE = [BLUE, ORANGE, GREEN, PINK, "#56B4E9", RED, "#b8a800", "#777777", "#aaaaaa", "#444444"];
const LABELS = PALETTE.length - 1;

/** Slices with figures of a run of their own, the oldest first. */
export function measured(slices: Iterable<SliceLine>): SliceLine[] {
  const known = [...slices].filter((slice) => hasResult(slice) && (slice.counts.planned ?? 0) > 0);
  return known.sort((a, b) => a.slice_key.localeCompare(b.slice_key, "en", { numeric: true }));
}

export function trendsOf(slices: SliceLine[], pricePerHour: number | null, currency: string): Trend[] {
  const of = (read: (slice: SliceLine) => number | null | undefined) => slices.map((slice) => read(slice) ?? null);
  const share = (name: string) =>
    of((slice) => (slice.counts.planned ? (100 * (slice.counts[name] ?? 0)) / slice.counts.planned : null));
  const degenerate = slices.some((slice) => slice.counts.degenerate)
    ? [{ name: "Degenerate", color: PINK, values: share("degenerate") }]
    : [];
  const trends: Trend[] = [
    { title: "Rows", unit: "rows", kind: "bar", series: [
      { name: "Answered", color: BLUE, values: of((s) => s.counts.succeeded) },
      { name: "In quarantine", color: ORANGE, values: of((s) => s.counts.quarantined) },
    ] },
    { title: "Tokens", unit: "tokens", kind: "bar", series: [
      { name: "Input", color: BLUE, values: of((s) => s.tokens.input) },
      { name: "Output", color: GREEN, values: of((s) => s.tokens.output) },
    ] },
    { title: "Rows per second", unit: "rows/s", kind: "line", series: [
      { name: "Rows per second", color: GREEN, values: of((s) => s.rows_per_s) },
    ] },
    { title: "Time", unit: "s", kind: "bar", series: [
      { name: "Queued", color: "#777777", values: of((s) => s.seconds.queued) },
      { name: "Engine start", color: ORANGE, values: of((s) => s.seconds.engine_start) },
      { name: "Inference", color: BLUE, values: of((s) => s.seconds.inference) },
      { name: "Publish", color: GREEN, values: of((s) => s.seconds.publish) },
    ] },
    { title: "Rows with problems", unit: "%", kind: "line", series: [
      { name: "In quarantine", color: ORANGE, values: share("quarantined") },
      { name: "Truncated", color: RED, values: share("truncated") },
      ...degenerate,
    ] },
  ];
  if (slices.some((slice) => slice.gpu_seconds)) {
    trends.push({ title: "Tokens per GPU and second", unit: "tokens", kind: "line", series: [
      { name: "Tokens", color: BLUE, values: of((s) => perGpuSecond(s)) },
    ] });
  }
  const costs = of((s) => cost(s, pricePerHour));
  if (costs.some((amount) => amount)) {
    trends.push({ title: "Cost of GPUs", unit: currency, kind: "bar", series: [{ name: currency, color: BLUE, values: costs }] });
  }
  const labels = labelShares(slices);
  if (labels.length > 0) trends.push({ title: "Labels", unit: "%", kind: "area", series: labels });
  return trends;
}

/** Each label's share of a slice's rows in percent; the rarest labels are one series. */
export function labelShares(slices: SliceLine[]): Series[] {
  const totals = new Map<string, number>();
  for (const slice of slices) {
    for (const [label, rows] of Object.entries(slice.labels ?? {})) {
      totals.set(label, (totals.get(label) ?? 0) + rows);
    }
  }
  const names = [...totals].sort((a, b) => b[1] - a[1]).map(([label]) => label);
  const shareOf = (wanted: string[]) =>
    slices.map((slice) => {
      if (!slice.labels) return null;
      const named = Object.values(slice.labels).reduce((sum, rows) => sum + rows, 0);
      // A report names the most frequent labels only; a row of several counts for each of them.
      const all = Math.max(named, slice.counts.succeeded ?? 0);
      const rows = wanted.reduce((sum, label) => sum + (rowsOf(slice.labels, label) ?? 0), 0);
      return all ? (100 * rows) / all : null;
    });
  const series = names.slice(0, LABELS).map((label, i) => ({
    name: label,
    color: PALETTE[i] as string,
    values: shareOf([label]),
  }));
  const rest = names.slice(LABELS);
  if (rest.length > 0) {
    series.push({ name: `${rest.length} others`, color: PALETTE[LABELS] as string, values: shareOf(rest) });
  }
  return series;
}

/** Of the run's own tokens: those of the slice are also of rows that earlier runs answered. */
function perGpuSecond({ gpu_seconds, tokens_per_s, seconds }: SliceLine): number | null {
  return gpu_seconds && tokens_per_s !== null ? (tokens_per_s * (seconds.inference ?? 0)) / gpu_seconds : null;
}
