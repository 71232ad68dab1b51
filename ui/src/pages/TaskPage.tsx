// One task: its calendar, and how its slices changed over time.

import { Button, Heading, HStack, Text } from "@chakra-ui/react";

import { useMemo, useState } from "react";

import { type DatesWithoutRun, paths, type Settings } from "../api";
import { latest, latestWithFigures, missingKeys, publishedBefore, slicesToCome } from "../calendar";
import { Calendar } from "../parts/task/Calendar";
import { Note, PageLink, Plain, Problem, Section, Waiting } from "../parts/basics";
import { FailedRuns } from "../parts/task/FailedRuns";
import { FillGaps, useBackfillable } from "../parts/task/FillGaps";
import { Trends } from "../parts/task/Trends";
import { failedRuns } from "../failures";
import { count } from "../format";
import { pathOf } from "../route";
import { measured } from "../trends";
import { useData } from "../useData";
import { useSlices } from "../useSlices";

export function TaskPage({ dag, task }: { dag: string; task: string }) {
  const { slices, total, withoutSlice, unreadable, withoutRun, error, loadMore } = useSlices(dag, task);
  const settings = useData<Settings>(paths.settings).value;
  const bySlice = useMemo(() => latest(slices ?? []), [slices]);
  const before = useMemo(() => publishedBefore(slices ?? []), [slices]);
  const known = useMemo(() => measured(latestWithFigures(slices ?? []).values()), [slices]);
  const areAll = (slices?.length ?? 0) + unreadable >= total;
  const toCome = useMemo(() => slicesToCome(slices ?? [], withoutSlice), [slices, withoutSlice]);
  const missing = useMemo(
    () => missingKeys(withoutRun.dates, slices ?? [], areAll).filter((key) => !toCome.has(key)),
    [areAll, slices, toCome, withoutRun],
  );
  const failed = useMemo(() => failedRuns(slices ?? [], bySlice, withoutSlice), [bySlice, slices, withoutSlice]);
  // What the open dialog is about stays as it is, also when the days begin meanwhile.
  const [asked, setAsked] = useState<string[] | null>(null);
  const backfillable = useBackfillable(dag, task, missing.length > 0 || asked !== null);
  return (
    <>
      <Text fontSize="sm">
        <PageLink to={pathOf({})}>Ray LLM</PageLink> /
      </Text>
      <Heading as="h1" maxWidth="100%" overflowWrap="anywhere" size="xl">
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
      ) : (
        <>
          <FailedRuns dag={dag} runs={failed} task={task} />
          {bySlice.size === 0 && toCome.size === 0 && areAll ? (
            <Note>
              {slices.length === 0
                ? "This task has no slices yet."
                : "This task has had trials only, which are tables of their own and no slices."}
            </Note>
          ) : null}
          <Section
            aside={
              backfillable ? (
                <FillGaps
                  {...backfillable}
                  asked={asked}
                  dag={dag}
                  dates={withoutRun.dates}
                  missing={missing}
                  onAsk={setAsked}
                  settings={settings}
                  slices={bySlice}
                  task={task}
                />
              ) : null
            }
            title="Slices"
          >
            <Calendar
              before={before}
              dag={dag}
              missing={missing}
              onFill={backfillable && ((key) => setAsked([key]))}
              slices={bySlice}
              task={task}
              toCome={toCome}
            />
            <Unknown withoutRun={withoutRun} />
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

/** Why nothing is called missing, or not all of it. */
function Unknown({ withoutRun: { dates, total, is_pending, note } }: { withoutRun: DatesWithoutRun }) {
  const words = is_pending
    ? "The schedule is being asked which slices there should be."
    : note !== null
      ? `Which slices are missing is not known: ${note}.`
      : total > dates.length
        ? `The newest ${count(dates.length)} of ${count(total)} dates without a run are looked at.`
        : null;
  return words === null ? null : (
    <Text color="fg.muted" fontSize="sm" mt={4}>
      {words}
    </Text>
  );
}
