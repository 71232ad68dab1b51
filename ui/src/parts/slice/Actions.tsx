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
  const actions = actionsFor(line, settings);
  const ofDag = `api/v2/dags/${encodeURIComponent(dag)}`;
  const details = useData<Details>(actions.length > 0 ? `${ofDag}/details` : null).value;
  const others = useOtherTasks(actions.length > 0 ? dag : null, task);
  if (actions.length === 0 || details === null) return null;
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

/** The names of a DAG's other tasks, which a run of it runs, too. */
export function useOtherTasks(dag: string | null, task: string): string[] | null {
  const path = dag === null ? null : `api/v2/dags/${encodeURIComponent(dag)}/tasks`;
  const { value } = useData<{ tasks: { task_id: string }[] }>(path);
  return value === null ? null : value.tasks.map(({ task_id }) => task_id).filter((name) => name !== task);
}

export function OtherTasks({ names, children }: { names: string[] | null; children?: string }) {
  if (!names?.length) return null;
  return (
    <Text mt={3}>
      The DAG&apos;s other tasks run, too: {listed(names)}.{children}
    </Text>
  );
}
