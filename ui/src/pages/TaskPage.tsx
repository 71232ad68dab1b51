// One task: its calendar, and how its slices changed over time.

import { Button, Heading, HStack, Text } from "@chakra-ui/react";

import { useMemo } from "react";

import { paths, type Settings } from "../api";
import {
  expectedUntil, gridOf, latest, latestWithFigures, missingKeys, publishedBefore, slicesToCome, splitByGrid,
  surelyMissing,
} from "../calendar";
import { Calendar } from "../parts/task/Calendar";
import { Note, PageLink, Plain, Problem, Section, Waiting } from "../parts/basics";
import { FillGaps } from "../parts/task/FillGaps";
import { Trends } from "../parts/task/Trends";
import { pathOf } from "../route";
import { measured } from "../trends";
import { useData } from "../useData";
import { useSlices } from "../useSlices";

export function TaskPage({ dag, task }: { dag: string; task: string }) {
  const { slices, total, withoutSlice, unreadable, nextStart, error, loadMore } = useSlices(dag, task);
  const settings = useData<Settings>(paths.settings).value;
  const bySlice = useMemo(() => latest(slices ?? []), [slices]);
  const before = useMemo(() => publishedBefore(slices ?? []), [slices]);
  const known = useMemo(() => measured(latestWithFigures(slices ?? []).values()), [slices]);
  const areAll = (slices?.length ?? 0) + unreadable >= total;
  const grid = useMemo(() => gridOf(bySlice.keys()), [bySlice]);
  const dated = useMemo(() => splitByGrid(bySlice, grid)[0], [bySlice, grid]);
  const [toCome, missing] = useMemo(() => {
    // An older run, which is not loaded, may have published what this page lacks.
    const sure = (keys: string[]) => (areAll ? keys : surelyMissing(keys, grid, slices ?? []));
    const runs = slicesToCome(dated, grid, withoutSlice);
    const keys = missingKeys(dated, grid, expectedUntil(dated, grid, nextStart, Date.now()));
    const coming = new Set(sure([...runs.keys()]));
    return [
      new Map([...runs].filter(([key]) => coming.has(key))),
      sure(keys).filter((key) => !coming.has(key)),
    ] as const;
  }, [areAll, dated, grid, nextStart, slices, withoutSlice]);
  return (
    <>
      <Text fontSize="sm">
        <PageLink to={pathOf({})}>Ray LLM</PageLink> /
      </Text>
      <Heading as="h1" maxWidth="100%" overflowWrap="anywhere" size="lg">
        <Plain>{dag}</Plain> / <Plain>{task}</Plain>
      </Heading>
      {error ? <Problem error={error} /> : null}
      {unreadable > 0 ? (
        <Note>
          {unreadable} entries were written by another version of the provider and are not shown: upgrade the provider
          where the API server runs.
        </Note>
      ) : null}
      {slices === null ? (
        error ? null : (
          <Waiting />
        )
      ) : slices.length === 0 ? (
        <Note>This task has no slices yet.</Note>
      ) : bySlice.size === 0 && areAll ? (
        <Note>This task has had trials only, which are tables of their own and no slices.</Note>
      ) : (
        <>
          <Section aside={<FillGaps dag={dag} missing={missing} settings={settings} slices={dated} task={task} />} title="Slices">
            <Calendar before={before} dag={dag} missing={missing} slices={bySlice} task={task} toCome={toCome} />
            {areAll ? null : (
              <HStack mt={4}>
                <Button onClick={loadMore} size="sm" variant="outline">
                  Load older runs
                </Button>
                <Text color="fg.muted" fontSize="sm">
                  {slices.length} of {total} runs are loaded: which days before them are missing is not known yet
                </Text>
              </HStack>
            )}
          </Section>
          <Trends settings={settings} slices={known} />
        </>
      )}
    </>
  );
}
