// A task's slices as a calendar: months of days, days of hours, or names in their order.

import { Box, Button, Flex, Grid, Heading, HStack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { RunWithoutSlice, SliceLine } from "../../api";
import {
  type Block, blocksOf, type Cell, cellsOf, dayNumber, gridOf, hourNumber, type Grid as Kind, namesOf, splitByGrid,
} from "../../calendar";
import { upstreamWords } from "../../failure";
import { count } from "../../format";
import { pathOf, taskInstancePath } from "../../route";
import { type CellState, colorsOf, LOOKS, ORDER } from "../../states";
import { shortName } from "../../text";
import { Mark } from "../basics";

const BLOCKS: Record<Kind, number> = { days: 12, hours: 31, names: 0 };
/** Characters of a reason. */
const TIP = 300;
const BEFORE = "what an earlier run published is there";
const WEEKDAYS = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];

interface Props {
  dag: string;
  task: string;
  slices: Map<string, SliceLine>;
  /** What is published of slices whose latest run published nothing. */
  before: Map<string, SliceLine | null>;
  missing: string[];
  /** Fills a missing slice; null where that cannot be. */
  onFill: ((key: string) => void) | null;
  /** Runs that have not come to their slice, which lead to Airflow's own page. */
  toCome: Map<string, RunWithoutSlice>;
}

export function Calendar({ dag, task, slices, before, missing, onFill, toCome }: Props) {
  const cells = cellsOf(slices, missing, toCome);
  const grid = gridOf(cells.map(({ key }) => key));
  const [only, setOnly] = useState<CellState | null>(null);
  const [dated, named] = splitByGrid(cells, grid);
  const blocks = blocksOf(dated, grid);
  const names = namesOf(named);
  const [times, setTimes] = useState(1);
  const shown = times * BLOCKS[grid];
  // In their order, but on a phone, where the newest would be far below.
  const visible = blocks.slice(0, shown).reverse();
  const place = { before, dag, onFill, only, task };
  return (
    <>
      <Legend before={before} cells={[...blocks.flatMap((block) => block.cells), ...names]} only={only} onOnly={setOnly} />
      <Flex direction={{ base: "column-reverse", sm: grid === "days" ? "row" : "column-reverse" }} gap={5} wrap={grid === "days" ? { sm: "wrap" } : undefined}>
        {visible.map((block) => (
          <Month block={block} key={block.title} kind={grid} {...place} />
        ))}
      </Flex>
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
          <Day cell={cell} key={cell.key} kind="names" {...place} />
        ))}
      </Flex>
    </>
  );
}

type Place = Pick<Props, "before" | "dag" | "onFill" | "task"> & {
  kind: Kind;
  /** Of cells that are not dimmed; null: of all. */
  only: CellState | null;
};

function Month({ block, kind, ...place }: Place & { block: Block }) {
  const columns = kind === "days" ? 7 : 24;
  return (
    <Box flexBasis={kind === "days" ? { sm: "15rem" } : undefined} flexGrow={1} maxWidth={kind === "days" ? "24rem" : undefined} overflowX="auto">
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

function Day({ cell, kind, before, dag, task, onFill, only }: Place & { cell: Cell }) {
  const { key, slice, run } = cell;
  const state = stateOf(cell);
  const name = kind === "days" ? dayNumber(key) : kind === "hours" ? hourNumber(key) : shortName(key);
  const earlier = before.get(key);
  const words = describe(cell) + (earlier === undefined ? "" : `; ${BEFORE}${earlier ? `: ${count(earlier.counts.succeeded)} rows` : ""}`);
  const body = (
    <Flex
      {...colorsOf(state)}
      borderRadius="sm"
      direction="column"
      height="38px"
      minWidth={kind === "names" ? "5rem" : "26px"}
      opacity={only === null || only === state ? 1 : 0.25}
      position="relative"
      px="4px"
      title={words}
    >
      <Text as="span" fontSize={kind === "names" ? "xs" : "2xs"} lineHeight="14px" textAlign="start" truncate>
        {name}
      </Text>
      {earlier !== undefined ? (
        <Text as="span" bottom="1px" fontSize="xs" left="4px" lineHeight="18px" position="absolute">
          {LOOKS.published.mark}
        </Text>
      ) : null}
      <Text as="span" bottom="1px" fontSize="sm" fontWeight="bold" lineHeight="18px" position="absolute" right="4px">
        {LOOKS[state].mark}
      </Text>
    </Flex>
  );
  const box = {
    _focusVisible: { outline: "2px solid", outlineColor: "fg" },
    "aria-label": words,
    borderRadius: "sm",
    maxWidth: kind === "names" ? "min(100%, 24rem)" : undefined,
  } as const;
  const to = slice
    ? pathOf({ dag, task, run: slice.run_id, map: slice.map_index })
    : run && taskInstancePath(dag, task, run.run_id, run.map_index);
  if (to) return <Box asChild {...box}><RouterLink to={to}>{body}</RouterLink></Box>;
  if (onFill === null) return <Box {...box} role="img">{body}</Box>;
  return <Box asChild cursor="pointer" display="block" {...box}><button onClick={() => onFill(key)} type="button">{body}</button></Box>;
}

function stateOf({ slice, run }: Cell): CellState {
  return slice?.state ?? run?.state ?? "missing";
}

function describe({ key, slice, run }: Cell): string {
  const hasBegun = !run || run.upstream !== null;
  const state = LOOKS[stateOf({ key, slice, run })].words + (hasBegun ? "" : "; its task has not come to the slice");
  const name = shortName(key);
  const at = slice ?? run;
  const reason = at?.upstream ? upstreamWords(at.upstream) : at?.failure?.sentence;
  if (reason) return `${name}: ${state}: ${shortName(reason, TIP)}`;
  if (!slice?.outcome) return `${name}: ${state}`;
  const { succeeded, quarantined } = slice.counts;
  const bad = quarantined ? `, ${count(quarantined)} in quarantine` : "";
  return `${name}: ${state}, ${count(succeeded)} rows${bad}`;
}

interface LegendProps {
  before: Map<string, SliceLine | null>;
  cells: (Cell | null)[];
  only: CellState | null;
  onOnly: (state: CellState | null) => void;
}

/** How many slices are in each state; one that is clicked dims the others. */
function Legend({ before, cells, only, onOnly }: LegendProps) {
  const states = cells.map((cell) => cell && stateOf(cell));
  return (
    <HStack gap={2} mb={4} wrap="wrap">
      {ORDER.map((state) => {
        const number = states.filter((s) => s === state).length;
        return number || state === "missing" ? (
          <Button
            aria-pressed={only === state}
            colorPalette="gray"
            disabled={!number}
            fontWeight="normal"
            key={state}
            onClick={() => onOnly(only === state ? null : state)}
            px={2}
            size="xs"
            variant={only === state ? "subtle" : "ghost"}
          >
            <Mark state={state} />
            <span>
              {LOOKS[state].words} <b>{count(number)}</b>
            </span>
          </Button>
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
