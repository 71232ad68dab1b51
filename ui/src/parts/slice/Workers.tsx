// What each worker of the engine did: the idlest are where time is lost.

import { Heading, Text } from "@chakra-ui/react";

import type { WorkerShare } from "../../api";
import { count, percent } from "../../format";
import { workersShown } from "../../workers";
import { Bars } from "../Bars";

export function Workers({ workers, total }: { workers: WorkerShare[]; total: number }) {
  const { shown, leftOut } = workersShown(workers, total);
  if (shown.length === 0) return null;
  return (
    <>
      <Heading as="h3" mb={2} mt={4} size="xs">
        Share of the time with requests, by worker
      </Heading>
      <Bars
        bars={shown.map(({ name, rows, busy_share }) => {
          return { name, share: Math.min(busy_share, 1), words: `${percent(busy_share, 1)}, ${count(rows)} rows` };
        })}
      />
      {leftOut > 0 ? (
        <Text color="fg.muted" fontSize="sm" mt={2}>
          {leftOut} workers between the busiest and the idlest are not shown.
        </Text>
      ) : null}
    </>
  );
}
