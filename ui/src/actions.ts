// What a person may do about a slice, each as a run of its DAG with some of the DAG's own Params. Pure.

import type { Settings, SliceLine } from "./api";
import { changeFirst, hasTooManyFailed } from "./failure";
import { compact, cost, count, money } from "./format";
import { measured } from "./trends";

export interface Action {
  name: string;
  /** What it will do, and cost. */
  words: string;
  conf: Record<string, unknown>;
  /** The DAG's Params that it sets, without which it cannot be. */
  needs: string[];
}

/** What a run's configuration has for that run alone. */
const OF_ONE_RUN = ["slice", "last_slice", "max_rows"];
/** What the actions set. */
const OF_ACTIONS = ["retry_quarantined", "force", "max_quarantine"];

/**
 * @param conf  of the slice's run: another model, say, would answer rows again that the words say are kept.
 */
export function actionsFor(line: SliceLine, settings: Settings | null = null, conf: Record<string, unknown> = {}): Action[] {
  if (line.trial || ["running", "held", "queued"].includes(line.state)) return [];
  const same = { ...without(conf, OF_ONE_RUN), slice: line.slice_key };
  const { quarantined = 0, planned = 0 } = line.counts;
  const actions: Action[] = [];
  if (quarantined > 0) {
    actions.push({
      name: "Answer quarantined rows again",
      words: `Starts the engine and asks the model again for the ${count(quarantined)} rows in quarantine. A new version of the slice replaces this one; its ${count(planned - quarantined)} answered rows stay as they are.`,
      conf: { ...without(same, OF_ACTIONS), retry_quarantined: true },
      needs: ["slice", "retry_quarantined"],
    });
  }
  if (line.state === "failed") {
    if (hasTooManyFailed(line.failure)) {
      actions.push({
        name: "Answer failed rows again",
        words: "Starts the engine and asks the model again for the rows that failed. Rows that were answered are kept and cost nothing again, as long as prompt, model and code are the same.",
        conf: { ...without(same, OF_ACTIONS), retry_quarantined: true },
        needs: ["slice", "retry_quarantined"],
      });
      actions.push({
        name: "Accept its quarantine",
        words: "Runs again and publishes the slice however many of its rows fail. Rows that were finished are kept; those that failed stay in quarantine.",
        conf: { ...same, max_quarantine: 1 },
        needs: ["slice", "max_quarantine"],
      });
    }
    actions.push({
      name: changeFirst(line) ? "Run again after the change" : "Run again",
      words: "Continues where the last run stopped: rows that it finished are kept and cost nothing again, as long as prompt, model and code are the same.",
      conf: same,
      needs: ["slice"],
    });
  }
  if (line.published_version !== null) {
    const before = usualCost([line], settings);
    actions.push({
      name: "Answer all rows again",
      words: `Asks the model again for all ${count(planned)} rows, and replaces the published version.${before ? ` The last time it took ${before}.` : ""}`,
      conf: { ...without(same, OF_ACTIONS), force: true },
      needs: ["slice", "force"],
    });
  }
  return actions;
}

function without(conf: Record<string, unknown>, names: string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(conf).filter(([name]) => !names.includes(name)));
}

/** What these slices took on average, in tokens and, with a price, in money; null where nothing was measured. */
export function usualCost(slices: Iterable<SliceLine>, settings: Settings | null): string | null {
  const known = measured(slices);
  const mean = (of: (slice: SliceLine) => number | null | undefined) => {
    const values = known.map(of).filter((value) => typeof value === "number");
    return values.length > 0 ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  };
  const tokens = mean(({ tokens: { input, output } }) => (input || output ? (input ?? 0) + (output ?? 0) : null));
  // What a run took is a part of it where others had answered some of its rows.
  const whole = (slice: SliceLine) => (slice.counts.resumed ? null : cost(slice, settings?.gpu_hour_price ?? null));
  const price = mean(whole);
  const parts = [
    tokens === null ? null : `${compact(tokens)} tokens`,
    price === null ? null : `GPUs for ${money(price, settings?.currency ?? "")}`,
  ];
  return parts.filter((part) => part !== null).join(" and ") || null;
}

/** The Params that an action needs and the DAG does not declare. */
export function lacking(action: Action, params: Record<string, unknown>): string[] {
  return action.needs.filter((name) => !(name in params));
}

/** Airflow's own clear of one task instance, which then runs again. */
export function clearOf(task: string, { run_id, map_index }: SliceLine): Record<string, unknown> {
  return {
    dry_run: false,
    dag_run_id: run_id,
    task_ids: [map_index < 0 ? task : [task, map_index]],
    only_failed: false,
    include_upstream: false,
    include_downstream: false,
    include_past: false,
    include_future: false,
    reset_dag_runs: true,
  };
}

/** Airflow's backfill that makes the runs that there are not. */
export function backfillOf(dag: string, [from, to]: [Date, Date]): Record<string, unknown> {
  return {
    dag_id: dag,
    from_date: from.toISOString(),
    to_date: to.toISOString(),
    reprocess_behavior: "none",
    run_backwards: false,
    max_active_runs: 4,
    dag_run_conf: {},
  };
}
