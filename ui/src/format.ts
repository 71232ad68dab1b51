// Numbers, durations and times as people read them.

/** For what was not measured. */
export const UNKNOWN = "–";

const NUMBER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? UNKNOWN : NUMBER.format(value);
}

export function compact(value: number | null | undefined): string {
  return value === null || value === undefined ? UNKNOWN : COMPACT.format(value);
}

export function rate(value: number | null | undefined, unit: string): string {
  if (value === null || value === undefined) return UNKNOWN;
  return `${value >= 100 ? NUMBER.format(value) : value.toPrecision(2)} ${unit}`;
}

export function percent(part: number | undefined, whole: number | undefined): string {
  if (part === undefined || !whole) return UNKNOWN;
  const share = (100 * part) / whole;
  return share > 0 && share < 0.1 ? "< 0.1%" : `${share.toFixed(share < 10 ? 1 : 0)}%`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds > 0 && seconds < 0.1) return "< 0.1 s";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 600) return `${(seconds / 60).toFixed(1)} min`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function time(value: string | null | undefined): string {
  if (!value) return UNKNOWN;
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return value;
  return date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short", timeZone: chosenTimezone() });
}

/** From when to when. */
export function span(started: string | null, ended: string | null): string {
  if (started === null) return "not started";
  return ended === null ? `since ${time(started)}` : `${time(started)} – ${time(ended)}`;
}

/** Of today's times: with seconds, and without the date. */
export function clock(value: string): string {
  return new Date(value).toLocaleTimeString(undefined, { timeZone: chosenTimezone() });
}

/** That a person chose in Airflow's UI, which keeps it so; by default the browser's. */
function chosenTimezone(): string | undefined {
  try {
    const chosen: unknown = JSON.parse(localStorage.getItem("timezone") ?? "null");
    return typeof chosen === "string" && Intl.DateTimeFormat("en", { timeZone: chosen }) ? chosen : undefined;
  } catch {
    return undefined;
  }
}

export function money(amount: number | null, currency: string): string {
  if (amount === null) return UNKNOWN;
  try {
    return new Intl.NumberFormat("en-US", { style: "currency", currency }).format(amount);
  } catch {
    return `${amount.toFixed(2)} ${currency}`;
  }
}

/** What a run's GPUs cost; of runs that knew no price, by today's. */
export function cost(run: { cost: number | null; gpu_seconds: number | null }, pricePerHour: number | null): number | null {
  if (run.cost !== null) return run.cost;
  return run.gpu_seconds === null || pricePerHour === null ? null : (run.gpu_seconds / 3600) * pricePerHour;
}
