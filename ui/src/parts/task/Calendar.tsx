// A task's slices as a calendar: months of days, days of hours, or names in their order.

import { Box, Button, Flex, Grid, Heading, HStack, SimpleGrid, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { RunWithoutSlice, SliceLine } from "../../api";
import {
  type Block, blocksOf, type Cell, cellsOf, dayNumber, gridOf, hourNumber, type Grid as Kind, namesOf, splitByGrid,
} from "../../calendar";
import { count } from "../../format";
import { pathOf, taskInstancePath } from "../../route";
import { type CellState, LOOKS, ORDER } from "../../states";
import { shortName } from "../../text";
import { Mark } from "../basics";

const BLOCKS: Record<Kind, number> = { days: 12, hours: 31, names: 0 };
const BEFORE = "what an earlier run published is there";
const WEEKDAYS = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];

interface Props {
  dag: string;
  task: string;
  slices: Map<string, SliceLine>;
  /** What is published of slices whose latest run published nothing. */
  before: Map<string, SliceLine>;
  missing: string[];
  /** Runs that have not come to their slice, which lead to Airflow's own page. */
  toCome: Map<string, RunWithoutSlice>;
}

export function Calendar({ dag, task, slices, before, missing, toCome }: Props) {
  const cells = cellsOf(slices, missing, toCome);
  const grid = gridOf(cells.map(({ key }) => key));
  const [dated, named] = splitByGrid(cells, grid);
  const blocks = blocksOf(dated, grid);
  const names = namesOf(named);
  const [times, setTimes] = useState(1);
  const shown = times * BLOCKS[grid];
  const visible = blocks.slice(0, shown);
  return (
    <>
      <Legend before={before} cells={[...blocks.flatMap((block) => block.cells), ...names]} />
      <SimpleGrid columns={grid === "days" ? { base: 1, sm: 2, lg: 3, xl: 4 } : 1} gap={5}>
        {visible.map((block) => (
          <Month before={before} block={block} dag={dag} key={block.title} kind={grid} task={task} />
        ))}
      </SimpleGrid>
      {blocks.length > shown ? (
        <Button mt={4} onClick={() => setTimes(times + 1)} size="sm" variant="outline">
          Show earlier ({blocks.length - shown} more)
        </Button>
      ) : null}
      {blocks.length > 0 && names.length > 0 ? (
        <Heading as="h3" mb={2} mt={5} size="xs">
          Names of their own
        </Heading>
      ) : null}
      <Flex gap={2} wrap="wrap">
        {names.map((cell) => (
          <Day before={before} cell={cell} dag={dag} key={cell.key} kind="names" task={task} />
        ))}
      </Flex>
    </>
  );
}

type Place = Pick<Props, "before" | "dag" | "task"> & { kind: Kind };

function Month({ block, kind, ...place }: Place & { block: Block }) {
  const columns = kind === "days" ? 7 : 24;
  return (
    <Box maxWidth={kind === "days" ? "22rem" : undefined} overflowX="auto">
      <Heading as="h3" mb={2} size="xs">
        {block.title}
      </Heading>
      <Grid gap={1} minWidth={kind === "hours" ? "46rem" : undefined} templateColumns={`repeat(${columns}, 1fr)`}>
        {kind === "days"
          ? WEEKDAYS.map((day) => (
              <Text color="fg.muted" fontSize="2xs" key={day} textAlign="center">
                {day}
              </Text>
            ))
          : null}
        {Array.from({ length: block.lead }, (_, i) => (
          <Box key={`lead-${i}`} />
        ))}
        {block.cells.map((cell, i) =>
          cell ? (
            <Day cell={cell} key={cell.key} kind={kind} {...place} />
          ) : (
            <Blank key={`blank-${i}`}>{kind === "days" ? i + 1 : String(i).padStart(2, "0")}</Blank>
          ),
        )}
      </Grid>
    </Box>
  );
}

/** A day for which nothing is expected. */
function Blank({ children }: { children: string | number }) {
  return (
    <Flex align="start" aria-hidden color="fg.muted" fontSize="2xs" height="38px" justify="start" p="3px">
      {children}
    </Flex>
  );
}

function Day({ cell, kind, before, dag, task }: Place & { cell: Cell }) {
  const { key, slice, run } = cell;
  const state = stateOf(cell);
  const look = LOOKS[state];
  const name = kind === "days" ? dayNumber(key) : kind === "hours" ? hourNumber(key) : shortName(key);
  const earlier = before.get(key) ?? null;
  const words = describe(cell) + (earlier ? `; ${BEFORE}: ${count(earlier.counts.succeeded)} rows` : "");
  const body = (
    <Flex
      bg={look.color}
      borderColor={state === "missing" ? "fg.muted" : "transparent"}
      borderRadius="sm"
      borderStyle={state === "missing" ? "dashed" : "solid"}
      borderWidth="1.5px"
      color={state === "missing" ? "fg" : look.ink}
      direction="column"
      height="38px"
      minWidth={kind === "names" ? "5rem" : "26px"}
      position="relative"
      px="4px"
      title={words}
    >
      <Text as="span" fontSize={kind === "names" ? "xs" : "2xs"} lineHeight="14px" truncate>
        {name}
      </Text>
      {earlier ? (
        <Text as="span" bottom="1px" fontSize="xs" left="4px" lineHeight="18px" position="absolute">
          {LOOKS.published.mark}
        </Text>
      ) : null}
      <Text as="span" bottom="1px" fontSize="sm" fontWeight="bold" lineHeight="18px" position="absolute" right="4px">
        {look.mark}
      </Text>
    </Flex>
  );
  const to = slice
    ? pathOf({ dag, task, run: slice.run_id, map: slice.map_index })
    : run && taskInstancePath(dag, task, run.run_id, -1);
  if (!to) return <Box aria-label={words} role="img">{body}</Box>;
  return (
    <Box asChild borderRadius="sm" maxWidth={kind === "names" ? "min(100%, 24rem)" : undefined} _focusVisible={{ outline: "2px solid", outlineColor: "fg" }}>
      <RouterLink aria-label={words} to={to}>
        {body}
      </RouterLink>
    </Box>
  );
}

function stateOf({ slice, run }: Cell): CellState {
  return slice?.state ?? run?.state ?? "missing";
}

function describe(cell: Cell): string {
  const { key, slice, run } = cell;
  const state = LOOKS[stateOf(cell)].words + (run ? "; its task has not come to the slice" : "");
  const name = shortName(key);
  if (!slice?.outcome) return `${name}: ${state}`;
  const { succeeded, quarantined } = slice.counts;
  const bad = quarantined ? `, ${count(quarantined)} in quarantine` : "";
  return `${name}: ${state}, ${count(succeeded)} rows${bad}`;
}

function Legend({ before, cells }: { before: Map<string, SliceLine>; cells: (Cell | null)[] }) {
  const states = cells.map((cell) => cell && stateOf(cell));
  return (
    <HStack gap={4} mb={4} wrap="wrap">
      {ORDER.map((state) => {
        const number = states.filter((s) => s === state).length;
        return number || state === "missing" ? (
          <HStack fontSize="sm" gap={2} key={state}>
            <Mark state={state} />
            <span>
              {LOOKS[state].words} <b>{count(number)}</b>
            </span>
          </HStack>
        ) : null;
      })}
      {before.size > 0 ? (
        <Text fontSize="sm">
          with {LOOKS.published.mark} at the left: {BEFORE} <b>{count(before.size)}</b>
        </Text>
      ) : null}
    </HStack>
  );
}
