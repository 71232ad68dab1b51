// Why a run failed, first of all.

import { Box, Heading, List, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

import type { FailureStory, Reason, RunWithoutSlice, SliceLine } from "../../api";
import { changeFirst, countWords, failureOf, markedWords, placeWords, sentenceOf } from "../../failure";
import { PageLink, Plain } from "../basics";
import { DidNotRun } from "../Why";

interface Props {
  dag: string;
  line: RunWithoutSlice | SliceLine;
  /** As Airflow has it. */
  own: FailureStory | null;
  /** What else tells why; null while it is asked. */
  reason: Reason | null;
  /** Where the task's log is; "": nowhere. */
  log: string;
}

export function Failed({ dag, line, own, reason, log }: Props) {
  if (line.upstream !== null) {
    return (
      <Alert title={<DidNotRun dag={dag} run={line.run_id} upstream={line.upstream} />}>
        <Text>{changeFirst(line)}</Text>
      </Alert>
    );
  }
  const [failure, marked] = [failureOf(own, reason), markedWords(own, reason)];
  if (marked !== null || failure === null) {
    if (line.state !== "failed" || reason === null) return null;
    return (
      <Alert title={marked === null ? "This run left no reason" : <Plain>{marked}</Plain>}>
        {marked === null ? <Text>Somebody marked it as failed, or its process died before it could say why.</Text> : null}
        {log ? <PageLink to={log}>The task&apos;s log</PageLink> : null}
      </Alert>
    );
  }
  const [place, counts] = [placeWords(failure.place), countWords(failure.counts)];
  return (
    <Alert title={<Plain>{sentenceOf(failure.sentence)}</Plain>}>
      {line.state === "queued" ? <Text>Airflow tries it again.</Text> : null}
      {failure.row_texts.length > 0 ? (
        <Text>
          In the rows: <Plain>{failure.row_texts.join(", ")}</Plain>
        </Text>
      ) : null}
      {failure.advice.length > 0 ? (
        <List.Root ps={5}>
          {failure.advice.map((text) => (
            <List.Item key={text}>
              <Plain>{sentenceOf(text)}</Plain>
            </List.Item>
          ))}
        </List.Root>
      ) : null}
      {place ? (
        <Text>
          Where: <Plain>{place}</Plain>
        </Text>
      ) : null}
      {counts ? (
        <Text>
          Rows at that moment: <Plain>{counts}</Plain>
        </Text>
      ) : null}
      <More lines={[...failure.cause.split("\n"), ...failure.frames].filter(Boolean)} title="The error itself" />
      <More lines={failure.log} title={`The end of ${failure.log_of || "the Ray job"}'s log`} />
    </Alert>
  );
}

function Alert({ title, children }: { title: ReactNode; children: ReactNode }) {
  return (
    <Box
      bg="bg.error"
      borderColor="border.error"
      borderLeftWidth="4px"
      borderRadius="sm"
      fontSize="sm"
      mt={4}
      overflowWrap="anywhere"
      p={4}
      role="alert"
    >
      <Heading as="h2" mb={2} size="md">
        {title}
      </Heading>
      <Box display="grid" gap={2} gridTemplateColumns="minmax(0, 1fr)">
        {children}
      </Box>
    </Box>
  );
}

function More({ title, lines }: { title: string; lines: string[] }) {
  if (lines.length === 0) return null;
  return (
    <Box as="details">
      <Box as="summary" cursor="pointer">
        <Plain>{title}</Plain>
      </Box>
      <Box as="pre" bg="bg" fontSize="xs" maxHeight="18rem" mt={2} overflowWrap="anywhere" overflowY="auto" p={3} tabIndex={0} whiteSpace="pre-wrap">
        <Plain>{lines.join("\n")}</Plain>
      </Box>
    </Box>
  );
}
