// Missing days as one of Airflow's backfills, which makes the runs that there are not.

import { Text } from "@chakra-ui/react";

import { backfillOf } from "../../actions";
import { call } from "../../api";
import { OtherTasks, useOtherTasks } from "../slice/Actions";
import { Plain } from "../basics";
import { Confirm } from "../Confirm";

interface DryRun {
  backfills: { logical_date: string | null; partition_key?: string | null }[];
}

export function FillGaps({ dag, task, missing }: { dag: string; task: string; missing: string[] }) {
  const body = backfillOf(dag, missing);
  const others = useOtherTasks(missing.length > 0 ? dag : null, task);
  if (body === null) return null;
  const fill = async () => {
    const text = JSON.stringify(body);
    const planned = await call<DryRun>("api/v2/backfills/dry_run", { method: "POST", body: text });
    if (planned.backfills.length === 0) {
      return (
        <Text>
          Airflow has a run for each of these days already, or the DAG&apos;s schedule has none. Open such a run and
          clear its task instead.
        </Text>
      );
    }
    await call("api/v2/backfills", { method: "POST", body: text });
    return <Text>Started a backfill of {planned.backfills.length} runs. Days appear here as they begin.</Text>;
  };
  return (
    <Confirm act={fill} name={`Fill ${missing.length} missing`}>
      <Text>
        Starts a backfill of <Plain>{dag}</Plain> from {missing[0]} to {missing.at(-1)}: a run for each date of its schedule that has
        none, four at a time. Dates that have a run are left alone.
      </Text>
      <OtherTasks names={others} />
    </Confirm>
  );
}
