// What a person may do about a slice: a run of its DAG, or a clear of its task, by Airflow's own API and with the
// person's own permission.

import { Code, HStack, Text } from "@chakra-ui/react";

import { type Action, actionsFor, clearOf, lacking } from "../../actions";
import { call, type Settings, type SliceLine } from "../../api";
import { changeFirst, sentenceOf } from "../../failure";
import { taskInstancePath } from "../../route";
import { listed, NAME, visible } from "../../text";
import { useData } from "../../useData";
import { PageLink, Plain, Section } from "../basics";
import { Confirm } from "../Confirm";

interface Props {
  dag: string;
  task: string;
  line: SliceLine;
  settings: Settings | null;
  /** What would keep its rows out of quarantine. */
  toChange: string[];
}

interface Details {
  is_paused: boolean;
  params: Record<string, unknown> | null;
}

export function Actions({ dag, task, line, settings, toChange }: Props) {
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
  const others = tasks?.filter((name) => name !== task) ?? null;
  const params = details.params ?? {};
  const all = actionsFor(line, settings, run.value?.conf ?? {});
  const actions = all.filter((action) => lacking(action, params).length === 0);
  const lacked = all.filter((action) => !actions.includes(action));
  const canClear = line.state === "failed" && !line.archived && lacked.some(({ needs }) => needs.length === 1);
  const start = async (action: Action) => {
    const body = JSON.stringify({ conf: action.conf, logical_date: null });
    const run = await call<{ dag_run_id: string }>(`${ofDag}/dagRuns`, { method: "POST", body });
    const path = `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run.dag_run_id)}`;
    return (
      <Text>
        Started: <PageLink to={path}>{visible(run.dag_run_id)}</PageLink>
        {paused(details)}
      </Text>
    );
  };
  const clear = async () => {
    const body = JSON.stringify(clearOf(task, line));
    await call(`${ofDag}/clearTaskInstances`, { method: "POST", body });
    return (
      <Text>
        Cleared: Airflow runs <PageLink to={taskInstancePath(dag, task, line.run_id, line.map_index)}>the task</PageLink>{" "}
        again{paused(details)}
      </Text>
    );
  };
  const first = changeFirst(line);
  return (
    <Section title="Actions">
      {[...(first ? [first] : []), ...toChange.map(sentenceOf)].map((text) => (
        <Text fontSize="sm" key={text} mb={2}>
          {text}
        </Text>
      ))}
      <HStack gap={2} wrap="wrap">
        {actions.map((action) => (
          <Confirm act={() => start(action)} key={action.name} name={action.name}>
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
        {canClear ? (
          <Confirm act={clear} name={first ? "Clear the task after the change" : "Clear the task"}>
            <Text>
              Airflow runs the task again in this run, <Plain most={NAME}>{line.run_id}</Plain>. Rows that it finished are
              kept and cost nothing again, as long as prompt, model and code are the same. Tasks after it are not cleared.
            </Text>
          </Confirm>
        ) : null}
      </HStack>
      {lacked.some(({ needs }) => !canClear || needs.length > 1) ? (
        <Text color="fg.muted" fontSize="sm" mt={actions.length > 0 || canClear ? 3 : 0}>
          With the Params of slice_params(), which this DAG lacks, you can do here, too:{" "}
          {lacked.map(({ name }) => name.toLowerCase()).join(", ")}.
        </Text>
      ) : null}
    </Section>
  );
}

function paused(details: Details): string {
  return details.is_paused ? ". The DAG is paused: it waits until you unpause it." : "";
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
