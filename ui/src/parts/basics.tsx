// Small things that all pages share.

import { Box, Flex, Grid, Heading, HStack, Link, Skeleton, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { ApiError, SliceLine } from "../api";
import { UNKNOWN } from "../format";
import { type CellState, colorsOf, LOOKS } from "../states";
import { NAME, shortName, visible } from "../text";

/** Characters of a tip. */
const TIP = 1_000;

/** The mark of a state: a colour and a letter. */
export function Mark({ state, size = "20px" }: { state: CellState; size?: string }) {
  return (
    <Flex
      {...colorsOf(state)}
      align="center"
      aria-hidden
      borderRadius="sm"
      flexShrink={0}
      fontSize="xs"
      fontWeight="bold"
      height={size}
      justify="center"
      width={size}
    >
      {LOOKS[state].mark}
    </Flex>
  );
}

export function StateWords({ state }: { state: CellState }) {
  return (
    <HStack as="span" display="inline-flex" gap={2} minWidth="6.5rem">
      <Mark state={state} />
      <span>{LOOKS[state].words}</span>
    </HStack>
  );
}

/** Says of a run of a slice that it was a trial, if so. */
export function Trial({ line }: { line: SliceLine }) {
  if (line.trial === null) return null;
  return (
    <Text as="span" color="fg.muted">
      {" "}
      trial <Plain most={NAME}>{line.trial}</Plain>
    </Text>
  );
}

export function PageLink({ to, children, label }: { to: string; children: ReactNode; label?: string }) {
  return (
    <Link asChild color="fg.info" display="inline">
      <RouterLink aria-label={label} to={to}>
        {children}
      </RouterLink>
    </Link>
  );
}

/** Text that others wrote, which reorders nothing around it. `most`: characters; a tip has the rest. */
export function Plain({ children, most }: { children: string; most?: number }) {
  if (most === undefined || children.length <= most) return <bdi>{visible(children)}</bdi>;
  return <bdi title={shortName(children, TIP)}>{shortName(children, most)}</bdi>;
}

export function Section({ title, children, aside }: { title: string; children: ReactNode; aside?: ReactNode }) {
  return (
    <Box as="section" borderColor="border" borderRadius="md" borderWidth="1px" mt={4} p={4}>
      <Flex align="center" gap={3} justify="space-between" mb={3} wrap="wrap">
        <Heading as="h2" size="sm">
          {title}
        </Heading>
        {aside}
      </Flex>
      {children}
    </Box>
  );
}

/** A number with its name; nothing where it is not known. */
export function Figure({ name, value, more }: { name: string; value: string; more?: string }) {
  if (value === UNKNOWN) return null;
  return (
    <Box>
      <Text color="fg.muted" fontSize="xs">
        {name}
      </Text>
      <Text fontSize="lg" fontVariantNumeric="tabular-nums" fontWeight="semibold">
        {value}
      </Text>
      {more ? (
        <Text color="fg.muted" fontSize="xs">
          {more}
        </Text>
      ) : null}
    </Box>
  );
}

const columns = (rem: number) => `repeat(auto-fill, minmax(${rem}rem, 1fr))`;

export function Figures({ children }: { children: ReactNode }) {
  return (
    <Grid gapX={4} gapY={3} templateColumns={{ base: columns(7), md: columns(9) }}>
      {children}
    </Grid>
  );
}

/** A table; on a phone, a list of its rows, each with some of its cells. */
export function PhoneTable({ header, children }: { header: ReactNode; children: ReactNode }) {
  return (
    <Box overflowX="auto" tabIndex={0}>
      <Table.Root display={{ base: "block", md: "table" }} size="sm">
        <Table.Header hideBelow="md">
          <Table.Row>{header}</Table.Row>
        </Table.Header>
        <Table.Body display={{ base: "block", md: "table-row-group" }}>{children}</Table.Body>
      </Table.Root>
    </Box>
  );
}

export function PhoneRow({ children }: { children: ReactNode }) {
  return (
    <Table.Row
      borderBottomWidth={{ base: "1px", md: "0" }}
      display={{ base: "grid", md: "table-row" }}
      gridTemplateColumns="minmax(0, 1fr) max-content"
      py={{ base: 2, md: 0 }}
      verticalAlign="top"
    >
      {children}
    </Table.Row>
  );
}

export function PhoneCell(props: Table.CellProps) {
  return (
    <Table.Cell
      borderBottomWidth={{ base: "0", md: "1px" }}
      display={{ base: "block", md: "table-cell" }}
      px={{ base: 0, md: 2 }}
      py={{ base: 1, md: 2 }}
      {...props}
    />
  );
}

export function Note({ children, role }: { children: ReactNode; role?: "alert" }) {
  return (
    <Box
      bg="bg.subtle"
      borderColor="border.emphasized"
      borderLeftWidth="4px"
      borderRadius="sm"
      fontSize="sm"
      my={2}
      overflowWrap="anywhere"
      p={3}
      role={role}
    >
      {children}
    </Box>
  );
}

export function Waiting() {
  return <Skeleton aria-label="Loading" height="9rem" mt={4} role="status" />;
}

export function Problem({ error }: { error: ApiError }) {
  const known: Record<number, string> = {
    401: "You are not logged in any more: reload the page.",
    403: "Airflow does not let you read this DAG's slices. Ask for the permission to read its task instances and XComs.",
    404: "There is no such slice: Airflow may have removed its run.",
  };
  return <Note role="alert">{known[error.status] ?? `The page could not be loaded: ${visible(error.message)}`}</Note>;
}
