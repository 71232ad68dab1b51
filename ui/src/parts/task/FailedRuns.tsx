// Why slices failed, the last first. On a phone: which and when, and why below.

import { Button, Table } from "@chakra-ui/react";
import { useState } from "react";

import type { FailedRun } from "../../failures";
import { time } from "../../format";
import { runPath } from "../../route";
import { NAME } from "../../text";
import { PageLink, PhoneCell, PhoneRow, PhoneTable, Plain, Section } from "../basics";
import { Why } from "../Why";

const SHOWN = 5;

export function FailedRuns({ dag, task, runs }: { dag: string; task: string; runs: FailedRun[] }) {
  const [isWhole, setWhole] = useState(false);
  if (runs.length === 0) return null;
  const shown = isWhole ? runs : runs.slice(0, SHOWN);
  return (
    <Section title={`Failed: ${runs.length}`}>
      <PhoneTable
        header={
          <>
            <Table.ColumnHeader>Slice</Table.ColumnHeader>
            <Table.ColumnHeader>Ended</Table.ColumnHeader>
            <Table.ColumnHeader>Why</Table.ColumnHeader>
          </>
        }
      >
        {shown.map((run) => (
          <PhoneRow key={`${run.run_id}/${run.map_index}`}>
            <PhoneCell maxWidth="14rem" minWidth={{ md: "6.5rem" }} overflowWrap="anywhere">
              <PageLink to={runPath(dag, task, run)}>
                <Plain most={NAME}>{run.key ?? run.run_id}</Plain>
              </PageLink>
            </PhoneCell>
            <PhoneCell whiteSpace="nowrap">{time(run.at)}</PhoneCell>
            <PhoneCell gridColumn="1 / -1" overflowWrap="anywhere" width={{ md: "75%" }}>
              <Why advises dag={dag} run={run} task={task} />
            </PhoneCell>
          </PhoneRow>
        ))}
      </PhoneTable>
      {runs.length > shown.length ? (
        <Button mt={3} onClick={() => setWhole(true)} size="sm" variant="outline">
          Show {runs.length - shown.length} more
        </Button>
      ) : null}
    </Section>
  );
}
