// All tasks that have slices, by DAG.

import { Badge, Box, Button, Heading, HStack, Table, Text } from "@chakra-ui/react";
import { useState } from "react";

import { paths, type TasksPage as Answer } from "../api";
import { count, rate, time } from "../format";
import { Note, PageLink, Plain, Problem, StateWords, Trial, Waiting } from "../parts/basics";
import { pathOf } from "../route";
import { NAME } from "../text";
import { useData } from "../useData";

const LIMIT = 50;
const REFRESH_MS = 30_000;

export function TasksPage() {
  const [offset, setOffset] = useState(0);
  const { value, error } = useData<Answer>(paths.tasks(offset, LIMIT), REFRESH_MS);
  return (
    <>
      <Heading as="h1" size="lg">
        Ray LLM
      </Heading>
      <Text color="fg.muted" mt={1}>
        Tables that language models fill, slice by slice. Choose a task to see its calendar.
      </Text>
      {error ? <Problem error={error} /> : null}
      {value === null ? error ? null : <Waiting /> : <Tasks answer={value} />}
      {value !== null && value.total > LIMIT ? (
        <HStack mt={3}>
          <Button disabled={offset === 0} onClick={() => setOffset(offset - LIMIT)} size="sm" variant="outline">
            Previous
          </Button>
          <Text fontSize="sm">
            {offset + 1}–{Math.min(offset + LIMIT, value.total)} of {value.total}
          </Text>
          <Button
            disabled={offset + LIMIT >= value.total}
            onClick={() => setOffset(offset + LIMIT)}
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

function Tasks({ answer }: { answer: Answer }) {
  if (answer.tasks.length === 0) {
    return (
      <Note>
        No slices yet. They appear here as soon as a task of a DAG that you may read runs a RayLLMBatchOperator or
        @task.ray_llm_batch.
      </Note>
    );
  }
  return (
    <Box mt={4} overflowX="auto">
      <Table.Root size="sm" variant="outline">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Task</Table.ColumnHeader>
            <Table.ColumnHeader>Latest slice</Table.ColumnHeader>
            <Table.ColumnHeader>State</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Rows</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">In quarantine</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Speed</Table.ColumnHeader>
            <Table.ColumnHeader>Ended</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Runs</Table.ColumnHeader>
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {answer.tasks.map(({ dag_id, task_id, dag_name, is_paused, runs, last }) => (
            <Table.Row key={`${dag_id}/${task_id}`}>
              <Table.Cell maxWidth="26rem" minWidth="10rem" overflowWrap="anywhere">
                <PageLink to={pathOf({ dag: dag_id, task: task_id })}>
                  <Plain most={NAME}>{dag_name}</Plain> / <Plain most={NAME}>{task_id}</Plain>
                </PageLink>
                {is_paused ? (
                  <Badge ml={2} size="sm">
                    paused
                  </Badge>
                ) : null}
              </Table.Cell>
              <Table.Cell maxWidth="16rem" truncate>
                {last ? (
                  <PageLink to={pathOf({ dag: dag_id, task: task_id, run: last.run_id, map: last.map_index })}>
                    <Plain most={NAME}>{last.slice_key}</Plain>
                  </PageLink>
                ) : (
                  "–"
                )}
                {last ? <Trial line={last} /> : null}
              </Table.Cell>
              <Table.Cell>{last ? <StateWords state={last.state} /> : "–"}</Table.Cell>
              <Table.Cell textAlign="end">{count(last?.counts.succeeded)}</Table.Cell>
              <Table.Cell textAlign="end">{count(last?.counts.quarantined)}</Table.Cell>
              <Table.Cell textAlign="end" whiteSpace="nowrap">{rate(last?.rows_per_s, "rows/s")}</Table.Cell>
              <Table.Cell whiteSpace="nowrap">{time(last?.ended)}</Table.Cell>
              <Table.Cell textAlign="end">{count(runs)}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
}
