// Which view an address shows: `/plugin/ray-llm/dags/DAG/tasks/TASK/runs/RUN/MAP_INDEX`, or a part of it.

export interface Route {
  dag?: string;
  task?: string;
  run?: string;
  map?: number;
}

const ROOT = "/plugin/ray-llm";

export function routeOf(pathname: string): Route {
  const at = pathname.indexOf(ROOT);
  const [dags, dag, tasks, task, runs, run, map] = (at < 0 ? "" : pathname.slice(at + ROOT.length + 1))
    .split("/")
    .map(decoded);
  if (dags !== "dags" || tasks !== "tasks" || !dag || !task) return {};
  if (runs !== "runs" || !run || !/^-?\d+$/.test(map ?? "")) return { dag, task };
  return { dag, task, run, map: Number(map) };
}

/** Paths for Airflow's router, which adds the path that Airflow is served at. */
export function pathOf({ dag, task, run, map }: Route): string {
  if (!dag || !task) return ROOT;
  const ofTask = `${ROOT}/dags/${encodeURIComponent(dag)}/tasks/${encodeURIComponent(task)}`;
  return run ? `${ofTask}/runs/${encodeURIComponent(run)}/${map ?? -1}` : ofTask;
}

/** Airflow's own page of a task instance. */
export function taskInstancePath(dag: string, task: string, run: string, map: number): string {
  const mapped = map >= 0 ? `/mapped/${map}` : "";
  return `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}/tasks/${encodeURIComponent(task)}${mapped}`;
}

/** The slice's page; of a run that has not come to its slice, Airflow's own. */
export function runPath(dag: string, task: string, run: { run_id: string | null; map_index: number; has_slice: boolean }): string {
  const id = run.run_id ?? "";
  return run.has_slice ? pathOf({ dag, task, run: id, map: run.map_index }) : taskInstancePath(dag, task, id, run.map_index);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
