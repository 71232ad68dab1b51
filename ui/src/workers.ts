// Which workers are shown, of very many. Pure.

import type { WorkerShare } from "./api";

const SHOWN = 16;

/** The busiest first. `total`: of workers, of which a report names some. */
export function workersShown(workers: WorkerShare[], total: number): { shown: WorkerShare[]; leftOut: number } {
  const half = SHOWN / 2;
  const shown = workers.length <= SHOWN ? workers : [...workers.slice(0, half), ...workers.slice(-half)];
  return { shown, leftOut: Math.max(total, workers.length) - shown.length };
}
