// Why slices failed, the newest first.

import { Box, Button, Table, Text } from "@chakra-ui/react";
import { useState } from "react";

import { sentenceOf } from "../../failure";
import type { FailedRun } from "../../failures";
import { time } from "../../format";
import { runPath } from "../../route";
import { NAME } from "../../text";
import { PageLink, Plain, Section } from "../basics";

const SHOWN = 5;

export function FailedRuns({ dag, task, runs }: { dag: string; task: string; runs: FailedRun[] }) {
  const [isWhole, setWhole] = useState(false);
  if (runs.length === 0) return null;
  const shown = isWhole ? runs : runs.slice(0, SHOWN);
  return (
    <Section title={`Failed: ${runs.length}`}>
      <Box overflowX="auto" tabIndex={0}>
        <Table.Root size="sm">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Slice</Table.ColumnHeader>
              <Table.ColumnHeader>Why</Table.ColumnHeader>
              <Table.ColumnHeader hideBelow="md">Ended</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {shown.map((run) => (
              <Table.Row key={`${run.run}/${run.map}`} verticalAlign="top">
                <Table.Cell maxWidth="14rem" minWidth="6.5rem" overflowWrap="anywhere">
                  <PageLink to={runPath(dag, task, { run_id: run.run, map_index: run.map, has_slice: run.hasSlice })}>
                    <Plain most={NAME}>{run.key ?? run.run}</Plain>
                  </PageLink>
                </Table.Cell>
                <Table.Cell overflowWrap="anywhere">
                  <Why run={run} />
                </Table.Cell>
                <Table.Cell hideBelow="md" whiteSpace="nowrap">
                  {time(run.at)}
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
      {runs.length > shown.length ? (
        <Button mt={3} onClick={() => setWhole(true)} size="sm" variant="outline">
          Show {runs.length - shown.length} more
        </Button>
      ) : null}
    </Section>
  );
}

function Why({ run: { failure } }: { run: FailedRun }) {
  if (failure === null) return <>Its task left no reason: its log may have one.</>;
  return (
    <>
      <Text color="failed.fg">
        <Plain>{sentenceOf(failure.sentence)}</Plain>
      </Text>
      {failure.advice.map((one) => (
        <Text key={one}>
          <Plain>{sentenceOf(one)}</Plain>
        </Text>
      ))}
    </>
  );
}
