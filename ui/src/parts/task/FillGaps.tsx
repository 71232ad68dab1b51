// Missing days as one of Airflow's backfills, which makes the runs that there are not.

import { Text } from "@chakra-ui/react";
import { useEffect, useState } from "react";

import { backfillOf, usualCost } from "../../actions";
import { type ApiError, call, type DateWithoutRun, type Settings, type SliceLine } from "../../api";
import { backfillRange } from "../../calendar";
import { listed } from "../../text";
import { useData } from "../../useData";
import { OtherTasks, useTasks } from "../slice/Actions";
import { Note, Plain, Waiting } from "../basics";
import { Confirm, reasonOf } from "../Confirm";

interface Details {
  is_paused: boolean;
  /** From Airflow 3.3 on. */
  is_backfillable?: boolean;
}

/** A run that a backfill would make, as Airflow's API answers it. */
interface PlannedRun {
  logical_date: string | null;
  partition_key?: string | null;
}

export interface Backfillable {
  isPaused: boolean;
  /** All tasks of the DAG, where they are known. */
  tasks: string[] | null;
}

/** Returns null where Airflow can make no runs that would fill a gap of the task. */
export function useBackfillable(dag: string, task: string, isAsked: boolean): Backfillable | null {
  const tasks = useTasks(isAsked ? dag : null);
  const details = useData<Details>(isAsked ? `api/v2/dags/${encodeURIComponent(dag)}/details` : null).value;
  if (details === null || details.is_backfillable === false) return null;
  // Runs of a DAG that has the task no more would fill nothing.
  return tasks !== null && !tasks.includes(task) ? null : { isPaused: details.is_paused, tasks };
}

interface Props extends Backfillable {
  dag: string;
  task: string;
  slices: Map<string, SliceLine>;
  settings: Settings | null;
  dates: DateWithoutRun[];
  missing: string[];
  /** Slices that the open dialog is about; null: it is closed. */
  asked: string[] | null;
  onAsk: (keys: string[] | null) => void;
}

export function FillGaps({ dag, task, slices, settings, dates, missing, asked, onAsk, isPaused, tasks }: Props) {
  const [plan, setPlan] = useState<PlannedRun[] | ApiError | null>(null);
  const keys = asked ?? missing;
  const range = backfillRange(dates, keys);
  const body = range && JSON.stringify(backfillOf(dag, range));
  const planned = asked === null ? null : body;
  useEffect(() => {
    if (planned === null) return undefined;
    let isCurrent = true;
    setPlan(null);
    call<{ backfills: PlannedRun[] }>("api/v2/backfills/dry_run", { method: "POST", body: planned }).then(
      ({ backfills }) => isCurrent && setPlan(backfills),
      (error: ApiError) => isCurrent && setPlan(error),
    );
    return () => {
      isCurrent = false;
    };
  }, [planned]);
  if (body === null) return null;
  const fill = async () => {
    await call("api/v2/backfills", { method: "POST", body });
    return <Text>Started. Its days wait here until their runs begin.</Text>;
  };
  const before = usualCost(slices.values(), settings);
  const runs = Array.isArray(plan) ? plan.map((run) => nameOf(run, dates)) : [];
  return (
    <Confirm act={fill} canAct={runs.length > 0} name={nameFor(keys)} opener={nameFor(missing)} isOpen={asked !== null} onOpenChange={(isOpen) => onAsk(isOpen ? missing : null)}>
      {plan === null ? (
        <Waiting />
      ) : !Array.isArray(plan) ? (
        <Note role="alert">{reasonOf(plan)}</Note>
      ) : runs.length === 0 ? (
        <Text>
          Airflow has a run for each of these already, or the DAG&apos;s schedule has none. Look for such a run in the DAG,
          and clear what failed in it.
        </Text>
      ) : (
        <>
          <Text>
            Starts a backfill of <Plain>{dag}</Plain>, four runs at a time, of {listed(runs)}. Dates that have a run are
            left alone.{before ? ` A slice of this task took ${before} on average.` : ""}
            {isPaused ? " The DAG is paused: they wait until you unpause it." : ""}
          </Text>
          <Finished names={runs.filter((key) => ["published", "quarantined"].includes(slices.get(key)?.state ?? ""))} />
          <OtherTasks names={tasks?.filter((name) => name !== task) ?? null} />
        </>
      )}
    </Confirm>
  );
}

function nameFor(keys: string[]): string {
  return `Fill ${keys.length} missing`;
}

/** The slice of a run; of one that the page does not know, its date. */
function nameOf({ logical_date, partition_key }: PlannedRun, dates: DateWithoutRun[]): string {
  const at = Date.parse(logical_date ?? "");
  return partition_key ?? dates.find((one) => Date.parse(one.date) === at)?.slice_key ?? logical_date ?? "";
}

/** Airflow makes runs also for slices whose run it has removed, and for those that a person's run published. */
function Finished({ names }: { names: string[] }) {
  if (names.length === 0) return null;
  return (
    <Text mt={3}>
      Published already, without a run of the schedule: {listed(names)}. Their runs find them finished and ask nothing,
      unless the task&apos;s arguments changed since.
    </Text>
  );
}
