// A run's phases in their order, by the report's seconds, and what GPUs were held for meanwhile. Pure.

export interface Phase {
  name: string;
  color: string;
  seconds: number;
}

/**
 * The engine's start is split as far as it is known; what is left of it has a line of its own, and so has
 * what is left of the total.
 */
export function phasesOf(seconds: Record<string, number>, start: Record<string, number | null> | null): Phase[] {
  const known = start ?? {};
  const engine = known.engine ?? 0;
  const parts: [string, string, number][] = [
    ["Worker imports", "#CC79A7", known.worker_imports ?? 0],
    ["Model loaded", "#56B4E9", known.load ?? 0],
    ["Compiled", "#E69F00", known.compile ?? 0],
    ["Warmed up", "#F0E442", known.warm_up ?? 0],
  ];
  const split = parts.reduce((sum, [, , part]) => sum + part, 0);
  const startTotal = seconds.engine_start ?? engine;
  const rest = Math.max(startTotal - split, 0);
  const phases: [string, string, number][] = [
    ["Queued", "#777777", seconds.queued ?? 0],
    ...(split > 0 && split <= startTotal ? parts : []),
    [split > 0 ? "Rest of the engine's start" : "Engine start", "#7F6BB0", split <= startTotal ? rest : startTotal],
    ["Inference", "#0072B2", seconds.inference ?? 0],
    ["Publish", "#009E73", seconds.publish ?? 0],
  ];
  const sum = phases.reduce((all, [, , part]) => all + part, 0);
  phases.push(["Airflow, job start and end", "#b9b9b9", Math.max((seconds.total ?? 0) - sum, 0)]);
  return named(phases);
}

/** Of the GPUs of a cluster that was made for the slice: seconds, times GPUs. */
export function heldPhases(held: Record<string, number>): Phase[] {
  return named([
    ["Image", "#777777", held.image ?? 0],
    ["Cluster", "#CC79A7", held.cluster ?? 0],
    ["Job start", "#E69F00", held.job_start ?? 0],
    ["Model loaded", "#56B4E9", held.model ?? 0],
    ["Rest of the engine's start", "#7F6BB0", held.engine_start ?? 0],
    ["Inference", "#0072B2", held.inference ?? 0],
    ["Publish", "#009E73", held.publish ?? 0],
    ["Checks, waiting and end", "#b9b9b9", held.other ?? 0],
  ]);
}

function named(parts: [string, string, number][]): Phase[] {
  return parts.filter(([, , part]) => part > 0).map(([name, color, part]) => ({ name, color, seconds: part }));
}
