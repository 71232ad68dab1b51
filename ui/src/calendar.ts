// Which slices there are and which are missing. Pure.

import type { SliceLine } from "./api";

export type Grid = "days" | "hours" | "names";

export interface Cell {
  key: string;
  slice: SliceLine | null;
}

export interface Block {
  title: string;
  /** Cells before the first, so that each stands in its column. */
  lead: number;
  cells: (Cell | null)[];
}

/** A run that a backfill would make, as Airflow's API answers it. */
export interface PlannedRun {
  logical_date: string | null;
  partition_key?: string | null;
}

const DAY = /^(\d{4})-?(\d{2})-?(\d{2})$/;
const HOUR = /^(\d{4})-?(\d{2})-?(\d{2})[T _-](\d{2})(?::?00){0,2}Z?$/;
const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;
/** From so many days on, a weekday that never had a slice is not expected to have one. */
const WEEKDAYS_SHOW = 21;

/** The latest run of each slice, as it is listed: the newest first. Trials are tables of their own. */
export function latest(slices: SliceLine[]): Map<string, SliceLine> {
  const found = new Map<string, SliceLine>();
  for (const slice of slices) {
    if (!slice.trial && !found.has(slice.slice_key)) found.set(slice.slice_key, slice);
  }
  return found;
}

export function gridOf(keys: Iterable<string>): Grid {
  const all = [...keys];
  if (all.length > 0 && all.every((key) => instantOf(key, DAY) !== null)) return "days";
  if (all.length > 0 && all.every((key) => instantOf(key, HOUR) !== null)) return "hours";
  return "names";
}

/**
 * The keys from the first to the last that have no slice, by the rhythm of those that have.
 *
 * @param end  an instant up to which there should be slices, as keys name instants; see `expectedUntil`.
 */
export function missingKeys(keys: Iterable<string>, grid: Grid, end: number | null = null): string[] {
  if (grid === "names") return [];
  const [pattern, unit] = grid === "days" ? [DAY, DAY_MS] : [HOUR, HOUR_MS];
  const written = [...keys];
  const known = new Set(written.map((key) => instantOf(key, pattern) as number));
  const instants = [...known].sort((a, b) => a - b);
  const [first, last] = [instants[0], instants.at(-1)];
  if (first === undefined || last === undefined) return [];
  const step = usualStep(instants) ?? unit;
  const weekdays = new Set(instants.map((instant) => new Date(instant).getUTCDay()));
  const anyWeekday = step !== DAY_MS || last - first < WEEKDAYS_SHOW * DAY_MS;
  const missing: string[] = [];
  for (let instant = first; instant < Math.max(last, end ?? last); instant += step) {
    const isExpected = anyWeekday || weekdays.has(new Date(instant).getUTCDay());
    if (isExpected && !known.has(instant)) missing.push(keyLike(written[0] as string, instant));
  }
  return missing;
}

/** The start of the schedule's next interval as keys name instants: in the DAG's timezone. */
export function expectedUntil(slices: Map<string, SliceLine>, grid: Grid, nextStart: string | null): number | null {
  if (grid === "names" || nextStart === null) return null;
  const start = Date.parse(nextStart);
  return start + (offsetNear(slices, grid, start) ?? clockAt(start, zoneOf(slices)));
}

/**
 * From when to when Airflow's backfill makes the runs of these keys and of all between them.
 *
 * @param isPartitioned  whether Airflow itself takes the dates for those of the schedule's timezone.
 */
export function backfillRange(
  slices: Map<string, SliceLine>,
  grid: Grid,
  keys: string[],
  isPartitioned = false,
): [Date, Date] | null {
  const [pattern, unit] = grid === "days" ? [DAY, DAY_MS] : [HOUR, HOUR_MS];
  const named = keys.map((key) => instantOf(key, pattern)).filter((instant) => instant !== null);
  if (grid === "names" || named.length === 0) return null;
  const [first, last] = [Math.min(...named), Math.max(...named)];
  const [early, late] = [offsetNear(slices, grid, first), offsetNear(slices, grid, last)];
  // The clock may change between a slice and the one that is nearest to it.
  if (early !== null && late !== null) return [new Date(first - early - unit / 4), new Date(last - late + unit / 4)];
  const timezone = isPartitioned ? null : zoneOf(slices);
  const end = last + unit - 1000;
  return [new Date(first - clockAt(first, timezone)), new Date(end - clockAt(end, timezone))];
}

/** The key of a run that Airflow would make. */
export function keyOfRun(slices: Map<string, SliceLine>, grid: Grid, run: PlannedRun): string {
  if (run.partition_key) return run.partition_key;
  const like = slices.keys().next().value;
  if (grid === "names" || like === undefined || !run.logical_date) return run.logical_date ?? "";
  const instant = Date.parse(run.logical_date);
  return keyLike(like, instant + (offsetNear(slices, grid, instant) ?? clockAt(instant, zoneOf(slices))));
}

/** The schedule's timezone, as the newest slice has it. */
function zoneOf(slices: Map<string, SliceLine>): string | null {
  return slices.values().next().value?.timezone ?? null;
}

/** What a timezone's clock is ahead of UTC; nothing where this browser does not know the timezone. */
function clockAt(instant: number, timezone: string | null): number {
  try {
    const clock = new Date(instant).toLocaleString("sv-SE", { timeZone: timezone ?? "UTC" });
    return Date.parse(`${clock.replace(" ", "T")}Z`) - Math.floor(instant / 1000) * 1000;
  } catch {
    return 0;
  }
}

/** What a run's date lacks to the one that its slice's key names, by the scheduled slice that is nearest. */
function offsetNear(slices: Map<string, SliceLine>, grid: Grid, instant: number): number | null {
  let nearest: [distance: number, offset: number] | null = null;
  for (const { slice_key, run_date } of slices.values()) {
    const named = instantOf(slice_key, grid === "days" ? DAY : HOUR);
    if (run_date === null || named === null) continue;
    const own = Date.parse(run_date);
    const distance = Math.abs(own - instant);
    if (nearest === null || distance < nearest[0]) nearest = [distance, named - own];
  }
  return nearest === null ? null : nearest[1];
}

/** Months of days, or days of hours, the newest first; or all names in one block. */
export function blocksOf(slices: Map<string, SliceLine>, grid: Grid, missing: string[]): Block[] {
  if (grid === "names") {
    const cells = [...slices.keys()].sort(byName).map((key) => ({ key, slice: slices.get(key) ?? null }));
    return [{ title: "", lead: 0, cells }];
  }
  const pattern = grid === "days" ? DAY : HOUR;
  const cells = new Map<number, Cell>();
  for (const [key, slice] of slices) cells.set(instantOf(key, pattern) as number, { key, slice });
  for (const key of missing) {
    cells.set(instantOf(key, pattern) as number, { key, slice: null });
  }
  const starts = new Set([...cells.keys()].map((instant) => (grid === "days" ? monthOf(instant) : dayOf(instant))));
  return [...starts]
    .sort((a, b) => b - a)
    .map((start) => (grid === "days" ? monthBlock(start, cells) : dayBlock(start, cells)));
}

function monthBlock(start: number, cells: Map<number, Cell>): Block {
  const date = new Date(start);
  const end = Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
  const days = Array.from({ length: (end - start) / DAY_MS }, (_, i) => cells.get(start + i * DAY_MS) ?? null);
  const title = date.toLocaleDateString("en-US", { month: "long", year: "numeric", timeZone: "UTC" });
  return { title, lead: (date.getUTCDay() + 6) % 7, cells: days };
}

function dayBlock(start: number, cells: Map<number, Cell>): Block {
  const hours = Array.from({ length: 24 }, (_, i) => cells.get(start + i * HOUR_MS) ?? null);
  return { title: new Date(start).toISOString().slice(0, 10), lead: 0, cells: hours };
}

export function dayNumber(key: string): string {
  return DAY.exec(key)?.[3]?.replace(/^0/, "") ?? key;
}

export function hourNumber(key: string): string {
  return HOUR.exec(key)?.[4] ?? key;
}

function instantOf(key: string, pattern: RegExp): number | null {
  const match = pattern.exec(key);
  if (!match) return null;
  const [year, month, day, hour] = match.slice(1).map(Number) as [number, number, number, number | undefined];
  const instant = Date.UTC(year, month - 1, day, hour ?? 0);
  return new Date(instant).getUTCDate() === day && (hour ?? 0) < 24 ? instant : null;
}

/** Writes an instant as another key is written: its digits change, and nothing else. */
function keyLike(key: string, instant: number): string {
  const iso = new Date(instant).toISOString();
  let digits = (iso.slice(0, 10) + iso.slice(11, 13)).replaceAll("-", "");
  return key.replace(/\d/g, (old) => {
    const digit = digits.slice(0, 1);
    digits = digits.slice(1);
    return digit || old;
  });
}

/** The most frequent step, once it was seen twice: two days apart may be every second day, or a gap. */
function usualStep(instants: number[]): number | null {
  const times = new Map<number, number>();
  for (let i = 1; i < instants.length; i++) {
    const step = (instants[i] as number) - (instants[i - 1] as number);
    times.set(step, (times.get(step) ?? 0) + 1);
  }
  const [most] = [...times].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  return most !== undefined && most[1] > 1 ? most[0] : null;
}

function monthOf(instant: number): number {
  const date = new Date(instant);
  return Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1);
}

function dayOf(instant: number): number {
  return Math.floor(instant / DAY_MS) * DAY_MS;
}

function byName(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}
