// What a person may do about a slice. Each is a run of its DAG by Airflow's own API, with the person's own
// permission.

import { Code, HStack, Text } from "@chakra-ui/react";

import { actionsFor, type Action, lacking } from "../../actions";
import { call, type Settings, type SliceLine } from "../../api";
import { useData } from "../../useData";
import { listed, visible } from "../../text";
import { PageLink, Plain, Section } from "../basics";
import { Confirm } from "../Confirm";

interface Props {
  dag: string;
  task: string;
  line: SliceLine;
  settings: Settings | null;
}

interface Details {
  is_paused: boolean;
  params: Record<string, unknown> | null;
}

export function Actions({ dag, task, line, settings }: Props) {
  const ofDag = `api/v2/dags/${encodeURIComponent(dag)}`;
  const canAct = actionsFor(line).length > 0;
  const details = useData<Details>(canAct ? `${ofDag}/details` : null).value;
  const run = useData<{ conf: Record<string, unknown> | null }>(
    canAct && !line.archived ? `${ofDag}/dagRuns/${encodeURIComponent(line.run_id)}` : null,
  );
  const tasks = useTasks(canAct ? dag : null);
  const isRunKnown = line.archived || run.value !== null || run.error?.status === 404;
  if (!canAct || details === null || !isRunKnown) return null;
  if (tasks !== null && !tasks.includes(task)) {
    return (
      <Section title="Actions">
        <Text fontSize="sm">The DAG has no task of this name any more: a run of it would not make this slice.</Text>
      </Section>
    );
  }
  const actions = actionsFor(line, settings, run.value?.conf ?? {});
  const others = tasks?.filter((name) => name !== task) ?? null;
  const params = details.params ?? {};
  const missing = [...new Set(actions.flatMap((action) => lacking(action, params)))];
  const start = async (action: Action) => {
    const body = JSON.stringify({ conf: action.conf, logical_date: null });
    const run = await call<{ dag_run_id: string }>(`${ofDag}/dagRuns`, { method: "POST", body });
    const path = `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run.dag_run_id)}`;
    return (
      <Text>
        Started: <PageLink to={path}>{visible(run.dag_run_id)}</PageLink>
        {details.is_paused ? ". The DAG is paused: the run waits until you unpause it." : ""}
      </Text>
    );
  };
  return (
    <Section title="Actions">
      <HStack gap={2} wrap="wrap">
        {actions.map((action) => (
          <Confirm
            act={() => start(action)}
            disabled={lacking(action, params).length > 0}
            key={action.name}
            name={action.name}
          >
            <Text>{action.words}</Text>
            <Text mt={3}>
              Starts a run of <Plain>{dag}</Plain> with this configuration:
            </Text>
            <Code display="block" mt={1} overflowWrap="anywhere" p={2}>
              {visible(JSON.stringify(action.conf))}
            </Code>
            <OtherTasks names={others}> The run has no logical date: what they take from it, such as ds, fails.</OtherTasks>
          </Confirm>
        ))}
      </HStack>
      {missing.length > 0 ? (
        <Text color="fg.muted" fontSize="sm" mt={3}>
          To enable all of these, declare the Params {missing.join(", ")} in the DAG and use them in its task, as the
          example DAG customers_operated does.
        </Text>
      ) : null}
    </Section>
  );
}

/** The names of a DAG's tasks, all of which a run of it runs. */
export function useTasks(dag: string | null): string[] | null {
  const path = dag === null ? null : `api/v2/dags/${encodeURIComponent(dag)}/tasks`;
  const { value } = useData<{ tasks: { task_id: string }[] }>(path);
  return value === null ? null : value.tasks.map(({ task_id }) => task_id);
}

export function OtherTasks({ names, children }: { names: string[] | null; children?: string }) {
  if (!names?.length) return null;
  return (
    <Text mt={3}>
      The DAG&apos;s other tasks run, too: {listed(names)}.{children}
    </Text>
  );
}
