// Why a run failed, in a list.

import { Text } from "@chakra-ui/react";

import type { Reason, UpstreamTask } from "../api";
import { callInTurn, paths } from "../api";
import { failureOf, lacksReason, markedWords, NO_REASON, sentenceOf } from "../failure";
import type { Failing } from "../failures";
import { taskInstancePath } from "../route";
import { NAME } from "../text";
import { useData } from "../useData";
import { PageLink, Plain } from "./basics";

interface Props {
  dag: string;
  task: string;
  run: Failing;
  /** Whether with what to do. */
  advises?: boolean;
}

export function Why({ dag, task, run, advises = false }: Props) {
  const reason = useReason(dag, task, run);
  if (run.upstream !== null) return <DidNotRun dag={dag} run={run.run_id} upstream={run.upstream} />;
  const [failure, marked] = [failureOf(run.failure, reason), markedWords(run.failure, reason)];
  if (marked !== null) return <Plain>{marked}</Plain>;
  if (failure === null) return <>{reason === null ? "…" : NO_REASON}</>;
  return (
    <>
      <Text as="span" color="failed.fg" display={advises ? "block" : undefined}>
        <Plain>{sentenceOf(failure.sentence)}</Plain>
      </Text>
      {advises ? failure.advice.map((one) => (
        <Text key={one}>
          <Plain>{sentenceOf(one)}</Plain>
        </Text>
      )) : null}
    </>
  );
}

/** What else tells why a run failed; null while it is asked. */
export function useReason(dag: string, task: string, run: Failing | null): Reason | null {
  const isAsked = run !== null && run.has_slice && run.upstream === null && lacksReason(run.failure);
  const path = isAsked ? `${paths.run(dag, task, run.run_id, run.map_index)}/reason` : null;
  const { value, error } = useData<Reason>(path, null, callInTurn);
  return isAsked && error === null ? value : NOTHING;
}

/** Where nothing else tells why. */
export const NOTHING: Reason = { failure: null, is_marked: false, marked_by: null };

/** Which tasks failed before one that Airflow therefore did not run. */
export function DidNotRun({ dag, run, upstream }: { dag: string; run: string; upstream: UpstreamTask[] }) {
  if (upstream.length === 0) return <>It did not run, because a task before it failed.</>;
  return (
    <>
      It did not run, because{" "}
      {upstream.map(({ task_id, map_index }, i) => (
        <span key={task_id}>
          {i === 0 ? "" : i === upstream.length - 1 ? " and " : ", "}
          <PageLink to={taskInstancePath(dag, task_id, run, map_index)}>
            <Plain most={NAME}>{task_id}</Plain>
          </PageLink>
        </span>
      ))}{" "}
      failed before it.
    </>
  );
}
