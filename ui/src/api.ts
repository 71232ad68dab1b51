// The API's answers (airflow_provider_raydatallm/page/answers.py), and how they are fetched.

import type { CellState } from "./states";

export type State = "published" | "quarantined" | "empty" | "running" | "held" | "queued" | "failed";

/** Why a try failed. */
export interface FailureLine {
  kind: string;
  /** Which failure it is, where the page acts on it; "": any other. */
  code: string;
  sentence: string;
  advice: string[];
  place: Record<string, string | number>;
  counts: Record<string, number>;
  /** Empty unless `[ray_llm] show_samples` allows them. */
  row_texts: string[];
}

export interface FailureStory extends FailureLine {
  cause: string;
  frames: string[];
  log: string[];
  /** Whose log that is; "": the Ray job's. */
  log_of: string;
}

/** A task of the same run; of a mapped one, the first instance that failed. */
export interface UpstreamTask {
  task_id: string;
  map_index: number;
}

/** What else tells why a run failed of which Airflow has no record, or that something stopped. */
export interface Reason {
  /** As the table's metadata have it. */
  failure: FailureStory | null;
  /** Whether a person marked it as failed. */
  is_marked: boolean;
  /** Who, where the user may read Airflow's audit log. */
  marked_by: string | null;
}

/** What a gate said of the slice. */
export interface GateVerdict {
  of: string;
  /** Null where it is not known, or a ratio to a median of 0. */
  value: number | null;
  max: number | null;
  min: number | null;
  /** Slices that it was compared with. */
  slices: number | null;
  verdict: "passed" | "warned" | "failed" | "held" | "unknown";
}

/** How well rows were answered whose right answers are known. */
export interface GoldenFigures {
  rows: number;
  correct: number;
  accuracy: number;
  low: number;
  high: number;
  /** The most frequent mistakes; null where answers are not one label each. */
  confusion: { expected: string; answered: string | null; rows: number }[] | null;
  calibration_error: number | null;
  /** Of the slice before with the same rows. */
  before: number | null;
  /** Beside answers of an earlier run, where it was lower. */
  lowest: number | null;
}

/** Rows that were asked twice. */
export interface RepeatFigures {
  rows: number;
  differing: number;
  share: number;
  low: number;
  high: number;
}

/** Answers that a second model judged. */
export interface JudgeFigures {
  model: string;
  rows: number;
  approved: number;
  failed: number;
  /** Null where it judged none. */
  share: number | null;
  low: number;
  high: number;
  /** Of the slice before with the same judge. */
  before: number | null;
}

export interface SliceLine {
  slice_key: string;
  timezone: string | null;
  table: string;
  run_id: string;
  map_index: number;
  try_number: number | null;
  state: State;
  started: string | null;
  ended: string | null;
  archived: boolean;
  trial: string | null;
  model: string | null;
  outcome: string | null;
  published_version: number | null;
  fingerprint: string | null;
  counts: Record<string, number>;
  tokens: Record<string, number>;
  seconds: Record<string, number>;
  rows_per_s: number | null;
  tokens_per_s: number | null;
  gpu_seconds: number | null;
  /** Of a cluster that was made for the slice: seconds times GPUs, by what it did meanwhile. */
  gpus_held: Record<string, number> | null;
  /** Of the GPUs, at the price that the run knew. */
  cost: number | null;
  gpu_mean: number | null;
  labels: Record<string, number> | null;
  quarantine_reasons: Record<string, number> | null;
  golden: GoldenFigures | null;
  repeat: RepeatFigures | null;
  judge: JudgeFigures | null;
  gates: GateVerdict[] | null;
  advice: string[];
  failure: FailureLine | null;
  /** The tasks whose failure kept it from running; null of one that ran. */
  upstream: UpstreamTask[] | null;
}

/** A run whose task has not come to its slice: it failed before, or, of the schedule or a backfill, waits. */
export interface RunWithoutSlice {
  run_id: string;
  map_index: number;
  state: State;
  /** Null where only the run knows. */
  slice_key: string | null;
  started: string | null;
  ended: string | null;
  failure: FailureLine | null;
  upstream: UpstreamTask[] | null;
}

export interface TaskRun {
  line: RunWithoutSlice;
  failure: FailureStory | null;
  tries: Try[];
}

/** A date of which the schedule, or a backfill, was to make a run. */
export interface DateWithoutRun {
  slice_key: string;
  date: string;
  archived: boolean;
}

export interface DatesWithoutRun {
  dates: DateWithoutRun[];
  total: number;
  is_pending: boolean;
  note: string | null;
}

export interface SlicesPage {
  slices: SliceLine[];
  total: number;
  without_slice: RunWithoutSlice[];
  unreadable: number;
  without_run: DatesWithoutRun;
}

/** A slice among the last of a task. */
export interface SliceMark {
  /** Null where only the run would know it. */
  slice_key: string | null;
  state: CellState;
  /** Null where there is none. */
  run_id: string | null;
  map_index: number;
  has_slice: boolean;
}

export interface TaskLine {
  dag_id: string;
  task_id: string;
  dag_name: string;
  is_paused: boolean;
  runs: number;
  newest: string | null;
  /** How many slices of the newest runs are in each state. */
  states: Partial<Record<CellState, number>>;
  last: SliceMark[];
  /** Whether these are all slices of the task. */
  is_all: boolean;
  /** The last that failed, and how many other reasons there are. */
  failed: { mark: SliceMark; failure: FailureLine | null; upstream: UpstreamTask[] | null; others: number } | null;
}

export interface TasksPage {
  tasks: TaskLine[];
  total: number;
}

export interface Try {
  number: number;
  state: string | null;
  started: string | null;
  ended: string | null;
}

export interface Asset {
  id: number;
  name: string;
}

export interface SliceRun {
  line: SliceLine;
  failure: FailureStory | null;
  output_path: string;
  output_url: string | null;
  assets: Asset[];
  ray_job_id: string | null;
  ray_job_url: string | null;
  tries: Try[];
  history: SliceLine[];
  /** What would keep the rows out of quarantine that this run put there. */
  to_change: string[];
}

export interface Advice {
  code: string;
  evidence: string;
  change: string;
}

export interface WorkerShare {
  name: string;
  rows: number;
  busy_share: number;
}

export interface History {
  span_s: number;
  offset_s: number;
  rows: number[];
  gpu_busy: (number | null)[] | null;
  cpu_busy: (number | null)[] | null;
}

export interface Report {
  counts: Record<string, number | null>;
  tokens: Record<string, number | null>;
  seconds: { start?: Record<string, number | null> | null; [name: string]: unknown };
  utilisation: Record<string, number | null>;
  balance: Record<string, number | null>;
  cost?: Record<string, number | null> | null;
  per_worker: WorkerShare[] | null;
  history: History | null;
  advice: Advice[] | null;
}

export interface Version {
  number: number;
  counts: Record<string, number | null>;
  labels: Record<string, number> | null;
  fingerprint: string;
  model: string | null;
}

export interface Progress {
  step: string | null;
  /** In the words of the command line. */
  phase: string | null;
  /** This was written. */
  when: string | null;
  rows: number | null;
  planned: number | null;
  failed: number | null;
  workers: number | null;
  rows_per_s: number | null;
  recent_rows_per_s: number | null;
  eta_s: number | null;
  per_worker: WorkerShare[] | null;
  history: History | null;
}

export interface Stored {
  report: Report | null;
  progress: Progress | null;
  versions: Version[];
  note: string | null;
}

export interface Sample {
  columns: string[];
  rows: (string | null)[][];
  note: string | null;
}

export interface Settings {
  show_samples: boolean;
  gpu_hour_price: number | null;
  currency: string;
}

const READ_MS = 60_000;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The path that Airflow is served at, with a slash at its end. */
export function basePath(): string {
  return new URL(document.baseURI).pathname.replace(/[^/]*$/, "");
}

/** Calls Airflow, as the user who is logged in. */
export async function call<T>(path: string, init?: RequestInit): Promise<T> {
  const response = await fetch(basePath() + path, {
    // What only reads may be asked again.
    ...(init ?? { signal: AbortSignal.timeout(READ_MS) }),
    credentials: "same-origin",
    headers: { Accept: "application/json", ...(init?.body ? { "Content-Type": "application/json" } : {}) },
  });
  const body: unknown = await response.json().catch(() => null);
  if (!response.ok) {
    throw new ApiError(response.status, reasonOf(body) ?? response.statusText);
  }
  return body as T;
}

/** Fewer than the server reads of one table at a time. */
const LANES = 3;
const lanes: Promise<unknown>[] = Array.from({ length: LANES }, () => Promise.resolve());
let asked = 0;

/** As `call`, for lists of what is read from storage: a few at a time. */
export function callInTurn<T>(path: string): Promise<T> {
  const lane = asked++ % LANES;
  const answer = (lanes[lane] as Promise<unknown>).then(() => call<T>(path));
  lanes[lane] = answer.catch(() => null);
  return answer;
}

function reasonOf(body: unknown): string | null {
  const detail = (body as { detail?: unknown } | null)?.detail;
  return detail === undefined ? null : typeof detail === "string" ? detail : JSON.stringify(detail);
}

const part = encodeURIComponent;

export const paths = {
  settings: "ray-llm/api/settings",
  tasks: (query: Record<string, string | number>) =>
    `ray-llm/api/tasks?${new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]))}`,
  task: (dag: string, task: string) => `ray-llm/api/dags/${part(dag)}/tasks/${part(task)}`,
  slices: (dag: string, task: string, offset: number, limit: number) =>
    `${paths.task(dag, task)}/slices?offset=${offset}&limit=${limit}`,
  run: (dag: string, task: string, run: string, map: number) =>
    `${paths.task(dag, task)}/runs/${part(run)}/${map}`,
};
