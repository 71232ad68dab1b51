// What a person may do about a slice, each as a run of its DAG with some of the DAG's own Params. Pure.

import type { SliceLine } from "./api";
import { count } from "./format";

export interface Action {
  name: string;
  /** What it will do, and cost. */
  words: string;
  conf: Record<string, unknown>;
  /** The DAG's Params that it sets, without which it cannot be. */
  needs: string[];
}

export function actionsFor(line: SliceLine): Action[] {
  if (line.trial || line.state === "running" || line.state === "queued") return [];
  const slice = line.slice_key;
  const { quarantined = 0, planned = 0 } = line.counts;
  const actions: Action[] = [];
  if (quarantined > 0) {
    actions.push({
      name: "Answer quarantined rows again",
      words: `Starts the engine and asks the model again for the ${count(quarantined)} rows in quarantine. A new version of the slice replaces this one; its ${count(planned - quarantined)} answered rows stay as they are.`,
      conf: { slice, retry_quarantined: true },
      needs: ["slice", "retry_quarantined"],
    });
  }
  if (line.state === "failed") {
    actions.push({
      name: "Run again",
      words: "Continues where the last run stopped: rows that it finished are kept and cost nothing again.",
      conf: { slice },
      needs: ["slice"],
    });
    actions.push({
      name: "Accept its quarantine",
      words: "Runs again and publishes the slice however many of its rows fail. Rows that were finished are kept; those that failed stay in quarantine.",
      conf: { slice, max_quarantine: 1 },
      needs: ["slice", "max_quarantine"],
    });
  }
  if (line.published_version !== null) {
    const tokens = (line.tokens.input ?? 0) + (line.tokens.output ?? 0);
    actions.push({
      name: "Answer all rows again",
      words: `Asks the model again for all ${count(planned)} rows${tokens ? `, some ${count(tokens)} tokens` : ""}, and replaces the published version.`,
      conf: { slice, force: true },
      needs: ["slice", "force"],
    });
  }
  return actions;
}

/** The Params that an action needs and the DAG does not declare. */
export function lacking(action: Action, params: Record<string, unknown>): string[] {
  return action.needs.filter((name) => !(name in params));
}

/** What an interval of missing days is in Airflow's backfill. */
export function backfillOf(dag: string, missing: string[]): Record<string, unknown> | null {
  const days = missing.map((key) => /^(\d{4})-?(\d{2})-?(\d{2})/.exec(key)?.slice(1).join("-"));
  const [first, last] = [days[0], days.at(-1)];
  if (!first || !last) return null;
  return {
    dag_id: dag,
    from_date: `${first}T00:00:00Z`,
    to_date: `${last}T23:59:59Z`,
    reprocess_behavior: "none",
    run_backwards: false,
    max_active_runs: 4,
    dag_run_conf: {},
  };
}
