// All tasks that have slices: those with failures first.

import { Badge, Box, Button, Flex, Heading, HStack, Input, Text } from "@chakra-ui/react";
import { useState } from "react";

import { paths, type TaskLine, type TasksPage as Answer } from "../api";
import { Choice } from "../parts/Choice";
import { Mark, Note, PageLink, Plain, Problem, Waiting } from "../parts/basics";
import { LastSlices } from "../parts/LastSlices";
import { Why } from "../parts/Why";
import { count, time } from "../format";
import { pathOf, runPath } from "../route";
import { LOOKS, ORDER } from "../states";
import { NAME } from "../text";
import { useData } from "../useData";

const LIMIT = 20;
const REFRESH_MS = 30_000;
const ORDERS: [string, string][] = [["urgency", "Failures first"], ["newest", "Newest run first"], ["name", "Name"]];
const STATES: [string, string][] = [["", "Any state"], ...ORDER.map((state): [string, string] => [state, LOOKS[state].words])];
const ALL = { name: "", state: "", order: "urgency", offset: 0 };

export function TasksPage() {
  const [query, setQuery] = useState(ALL);
  const { state, ...rest } = query;
  const path = paths.tasks({ ...rest, limit: LIMIT, ...(state ? { state } : {}) });
  const { value, error } = useData<Answer>(path, REFRESH_MS);
  const [shown, setShown] = useState<Answer | null>(null);
  // While others are looked for, those that were found stay.
  if (value !== null && value !== shown) setShown(value);
  const isAll = query.name === "" && query.state === "";
  const change = (more: Partial<typeof ALL>) => setQuery({ ...query, offset: 0, ...more });
  return (
    <>
      <Heading as="h1" size="xl">
        Ray LLM
      </Heading>
      <Text color="fg.muted" fontSize="sm" mt={1}>
        The tables that language models fill, slice by slice.
      </Text>
      {error ? <Problem error={error} /> : null}
      <Flex gap={4} mt={4} rowGap={2} wrap="wrap">
        <Input
          aria-label="Search"
          maxLength={200}
          maxWidth="20rem"
          onChange={(event) => change({ name: event.target.value })}
          placeholder="Search DAGs and tasks"
          size="sm"
          type="search"
          value={query.name}
        />
        <Choice label="With slices that are" onChoose={(chosen) => change({ state: chosen })} options={STATES} value={query.state} />
        <Choice label="Order" onChoose={(chosen) => change({ order: chosen })} options={ORDERS} value={query.order} />
      </Flex>
      {shown === null ? error ? null : <Waiting /> : <Tasks isAll={isAll} tasks={shown.tasks} />}
      {shown !== null && shown.total > LIMIT ? (
        <HStack mt={3}>
          <Button disabled={query.offset === 0} onClick={() => change({ offset: query.offset - LIMIT })} size="sm" variant="outline">
            Previous
          </Button>
          <Text fontSize="sm">
            {query.offset + 1}–{Math.min(query.offset + LIMIT, shown.total)} of {shown.total}
          </Text>
          <Button
            disabled={query.offset + LIMIT >= shown.total}
            onClick={() => change({ offset: query.offset + LIMIT })}
            size="sm"
            variant="outline"
          >
            Next
          </Button>
        </HStack>
      ) : null}
    </>
  );
}

function Tasks({ tasks, isAll }: { tasks: TaskLine[]; isAll: boolean }) {
  if (tasks.length === 0) {
    return (
      <Note>
        {isAll
          ? "No slices yet. They appear here as soon as a task of a DAG that you may read runs a RayLLMBatchOperator or @task.ray_llm_batch."
          : "No task is so."}
      </Note>
    );
  }
  return (
    <Box as="ul" borderColor="border" borderRadius="md" borderWidth="1px" listStyleType="none" mt={4}>
      {tasks.map((task) => (
        <Box as="li" borderColor="border" borderTopWidth="1px" key={`${task.dag_id}/${task.task_id}`} p={3} _first={{ borderTopWidth: 0 }}>
          <Task task={task} />
        </Box>
      ))}
    </Box>
  );
}

function Task({ task }: { task: TaskLine }) {
  const { dag_id: dag, task_id, dag_name, is_paused, runs, newest, states, last, is_all, failed } = task;
  return (
    <>
      <Flex columnGap={4} justify="space-between" rowGap={1} wrap="wrap">
        <Text fontWeight="semibold" maxWidth="100%" minWidth={0} overflowWrap="anywhere">
          <PageLink to={pathOf({ dag, task: task_id })}>
            <Plain most={NAME}>{dag_name}</Plain> / <Plain most={NAME}>{task_id}</Plain>
          </PageLink>
          {is_paused ? (
            <Badge ml={2} size="sm">
              paused
            </Badge>
          ) : null}
        </Text>
        <Text color="fg.muted" fontSize="sm">
          {newest ? `newest run ${time(newest)}, ` : ""}
          {count(runs)} {runs === 1 ? "run" : "runs"}
        </Text>
      </Flex>
      <Flex align="center" columnGap={6} mt={2} rowGap={2} wrap="wrap">
        <LastSlices dag={dag} marks={last} task={task_id} />
        <HStack columnGap={4} fontSize="sm" rowGap={1} wrap="wrap">
          {ORDER.filter((state) => states[state]).map((state) => (
            <HStack gap={1.5} key={state}>
              <Mark size="16px" state={state} />
              <span>
                {LOOKS[state].words} <b>{count(states[state])}</b>
              </span>
            </HStack>
          ))}
          {last.length === 0 ? <Text color="fg.muted">Trials only</Text> : null}
          {is_all ? null : <Text color="fg.muted">in the newest runs</Text>}
        </HStack>
      </Flex>
      {failed ? (
        <Box fontSize="sm" mt={2}>
          <Text color="failed.fg" lineClamp={2} overflowWrap="anywhere">
            <PageLink to={runPath(dag, task_id, failed.mark)}>
              <Plain most={NAME}>{failed.mark.slice_key ?? failed.mark.run_id ?? ""}</Plain>
            </PageLink>
            {": "}
            <Why dag={dag} run={{ ...failed.mark, ...failed, run_id: failed.mark.run_id ?? "" }} task={task_id} />
          </Text>
          {failed.others > 0 ? (
            <Text color="fg.muted">
              And {count(failed.others)} other {failed.others === 1 ? "reason" : "reasons"}.
            </Text>
          ) : null}
        </Box>
      ) : null}
    </>
  );
}
