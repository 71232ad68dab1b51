// How a run went over time, as lines of steps on the scale of its phases. Pure.

import type { History } from "./api";

export interface Steps {
  title: string;
  unit: string;
  color: string;
  /** 100 for percentages; null: as it comes. */
  most: number | null;
  /** Seconds on the scale, and the value from there on. */
  points: [number, number | null][];
}

export interface Scale {
  /** Seconds. */
  to: number;
  isWholeRun: boolean;
  charts: Steps[];
}

/** How far apart the marks of a scale may be. */
const DAY_S = 86_400;
const MARK_S = [0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, DAY_S];

/** Below this share of a run, its inference would be a sliver on the scale of the whole. */
const LEAST_SHARE = 0.15;

/** Seconds between two marks of a scale from 0 on, as people count time. */
export function markEvery(to: number, most: number): number {
  const least = to / most;
  return MARK_S.find((step) => step >= least) ?? Math.ceil(least / DAY_S) * DAY_S;
}

/** Of a finished run, whose phases the chart stands below. */
export function overTime(history: History, seconds: Record<string, number>): Scale {
  const begin = (seconds.queued ?? 0) + (seconds.engine_start ?? 0);
  const inference = seconds.inference ?? history.offset_s + history.rows.length * history.span_s;
  const total = Math.max(seconds.total ?? 0, begin + inference + (seconds.publish ?? 0));
  const isWholeRun = inference >= LEAST_SHARE * total;
  const shift = isWholeRun ? begin : 0;
  return {
    to: isWholeRun ? total : inference,
    isWholeRun,
    charts: chartsOf(history, inference, shift),
  };
}

/** Of a run that goes on: its last span is still open. */
export function soFar(history: History): Scale {
  const spans = Math.max(history.rows.length - 1, 0);
  const until = Math.max(history.offset_s + spans * history.span_s, 0);
  return { to: until, isWholeRun: false, charts: until > 0 ? chartsOf(history, until, 0) : [] };
}

function chartsOf(history: History, inference: number, shift: number): Steps[] {
  const spans = history.rows
    .map((_, i) => {
      const start = history.offset_s + i * history.span_s;
      return { i, start: Math.max(start, 0), stop: Math.min(start + history.span_s, inference) };
    })
    .filter(({ start, stop }) => stop > start);
  const steps = (valueOf: (i: number, covered: number) => number | null): [number, number | null][] => {
    const points = spans.map(({ i, start, stop }): [number, number | null] => [
      shift + start,
      valueOf(i, stop - start),
    ]);
    const [lastPoint, lastSpan] = [points.at(-1), spans.at(-1)];
    return lastPoint && lastSpan ? [...points, [shift + lastSpan.stop, lastPoint[1]]] : [];
  };
  // Rows of the little that a run has of its first or last span say nothing of its speed.
  const speed = steps((i, covered) => (history.rows[i] ?? 0) / Math.max(covered, history.span_s / 2));
  const busy = history.gpu_busy ?? history.cpu_busy;
  const charts: Steps[] = [];
  if (busy) {
    const title = history.gpu_busy ? "GPUs busy" : "CPUs busy";
    charts.push({ title, unit: "%", color: "#E69F00", most: 100, points: steps((i) => busy[i] ?? null) });
  }
  charts.push({ title: "Rows per second", unit: "rows/s", color: "#0072B2", most: null, points: speed });
  return charts;
}
