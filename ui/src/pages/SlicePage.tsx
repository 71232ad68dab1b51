// One run of one slice: what came of it, what it took, what to change, and what it published.

import { Box, Flex, Heading, HStack, Link, Table, Text } from "@chakra-ui/react";
import { type ReactNode, useMemo } from "react";

import { paths, type Settings, type SliceLine, type SliceRun, type Stored, type TaskRun, type Try } from "../api";
import { failureOf, markedWords, sentenceOf } from "../failure";
import { compact, cost, count, money, percent, rate, span, time, UNKNOWN } from "../format";
import { Actions } from "../parts/slice/Actions";
import {
  Figure, Figures, Note, PageLink, PhoneCell, PhoneRow, PhoneTable, Plain, Problem, Section, StateWords, Trial, Waiting,
} from "../parts/basics";
import { Cluster } from "../parts/slice/Cluster";
import { Failed } from "../parts/slice/Failed";
import { Gates } from "../parts/slice/Gates";
import { Probes } from "../parts/slice/Probes";
import { Live } from "../parts/slice/Live";
import { OverTime } from "../parts/slice/OverTime";
import { GpusHeld, Phases } from "../parts/slice/Phases";
import { RowCounts } from "../parts/slice/RowCounts";
import { Samples } from "../parts/slice/Samples";
import { SideBySide } from "../parts/slice/SideBySide";
import { Versions } from "../parts/slice/Versions";
import { DidNotRun, NOTHING, useReason } from "../parts/Why";
import { pathOf, taskInstancePath } from "../route";
import { newestOf, publishedUnder } from "../runs";
import { LOOKS } from "../states";
import { NAME } from "../text";
import { useData } from "../useData";

interface Props {
  dag: string;
  task: string;
  run: string;
  map: number;
}

const LIVE_MS = 5_000;
/** States of a run that failed, or that Airflow tries again. */
const HAS_FAILED = ["failed", "queued"];
/** Characters: a slice's key has at most 200. */
const HEADING = 300;

export function SlicePage({ dag, task, run, map }: Props) {
  const path = paths.run(dag, task, run, map);
  const { value, error } = useData<SliceRun>(path, whileItRuns);
  const toCome = useData<TaskRun>(error?.status === 404 ? `${path}/task` : null).value;
  const failed = value && HAS_FAILED.includes(value.line.state) ? { ...value.line, has_slice: !value.line.archived } : null;
  const reason = useReason(dag, task, failed);
  // What the table's metadata know of its failure is as good as what Airflow knows.
  const answer = useMemo(() => value && { ...value, line: { ...value.line, failure: failureOf(value.failure ?? value.line.failure, reason) } }, [reason, value]);
  const state = answer?.line.state;
  // Asked anew when the run ends.
  const stored = useData<Stored>(answer ? `${path}/stored?state=${state}` : null, answer && whileItRuns(answer));
  const settings = useData<Settings>(paths.settings).value;
  const history = stored.value?.report?.history;
  return (
    <>
      <Text fontSize="sm" overflowWrap="anywhere">
        <PageLink to={pathOf({})}>Ray LLM</PageLink> /{" "}
        <PageLink to={pathOf({ dag, task })}>
          <Plain>{dag}</Plain> / <Plain>{task}</Plain>
        </PageLink>{" "}
        /
      </Text>
      {error && !toCome ? <Problem error={error} /> : null}
      {toCome ? <WithoutSlice answer={toCome} dag={dag} task={task} /> : null}
      {answer === null ? error ? null : <Waiting /> : (
        <>
          <Head answer={answer} dag={dag} map={map} run={run} task={task} />
          <Failed
            dag={dag}
            line={answer.line}
            own={answer.failure}
            reason={reason}
            log={answer.line.archived ? "" : taskInstancePath(dag, task, run, map)}
          />
          {stored.value?.note ? <Note>{stored.value.note}</Note> : null}
          {stored.error && !error ? <Note>The slice&apos;s folder could not be read: this is what Airflow knows.</Note> : null}
          <OtherRun answer={answer} dag={dag} task={task} />
          <NewerVersion before={publishedUnder(answer.line, answer.history)} line={answer.line} stored={stored.value} />
          {state === "held" ? <Held dag={dag} map={map} run={run} task={task} /> : null}
          {isNewest(answer) && state === "running" ? <Live stored={stored.value} /> : null}
          <Result line={answer.line} settings={settings} stored={stored.value} />
          {isNewest(answer) ? <Actions dag={dag} line={answer.line} settings={settings} task={task} toChange={answer.to_change} /> : null}
          <Probes line={answer.line} />
          <Gates verdicts={answer.line.gates} />
          <RowCounts
            counts={answer.line.labels}
            names="labels"
            rows={answer.line.counts.succeeded ?? 0}
            title="Labels"
          />
          <RowCounts
            counts={answer.line.quarantine_reasons}
            names="reasons"
            rows={answer.line.counts.quarantined ?? 0}
            title="Why rows are in quarantine"
          />
          <Advice line={answer.line} stored={stored.value} />
          {answer.line.outcome ? (
            <Section title="Time">
              <Phases seconds={answer.line.seconds} start={stored.value?.report?.seconds.start} />
              <GpusHeld held={answer.line.gpus_held} />
              {history ? <OverTime history={history} seconds={answer.line.seconds} /> : null}
            </Section>
          ) : null}
          <Cluster stored={stored.value} />
          {stored.value ? <Versions versions={stored.value.versions} /> : null}
          <SideBySide dag={dag} line={answer.line} task={task} />
          {settings?.show_samples && (answer.line.published_version !== null || state === "held") ? (
            <Samples isHeld={state === "held"} path={path} quarantined={answer.line.counts.quarantined ?? 0} />
          ) : null}
          <History answer={answer} dag={dag} marked={markedWords(answer.failure, reason)} task={task} />
        </>
      )}
    </>
  );
}

/** All rows are answered, and a person decides whether they are published. */
function Held({ dag, task, run, map }: Props) {
  return (
    <Section title="Decision">
      <Text>
        All rows are answered, and nothing of them is published: a gate leaves that to a person.
      </Text>
      <PageLink to={`${taskInstancePath(dag, task, run, map)}/required_actions`}>Approve or reject</PageLink>
    </Section>
  );
}

/** A run that failed, or waits, before its task came to its slice. */
function WithoutSlice({ answer, dag, task }: { answer: TaskRun; dag: string; task: string }) {
  const { line, failure, tries } = answer;
  const log = taskInstancePath(dag, task, line.run_id, line.map_index);
  return (
    <>
      <Flex align="center" gap={4} mt={1} wrap="wrap">
        <Heading as="h1" maxWidth="100%" overflowWrap="anywhere" size="xl">
          <Plain most={HEADING}>{line.slice_key ?? line.run_id}</Plain>
        </Heading>
        <StateWords state={line.state} />
      </Flex>
      <HStack color="fg.muted" columnGap={4} fontSize="sm" mt={2} wrap="wrap">
        <PageLink to={log}>Task instance and log</PageLink>
        <Text>{lasted(line)}</Text>
      </HStack>
      <Failed dag={dag} line={line} log={log} own={failure} reason={NOTHING} />
      <Note>This run&apos;s task has not come to its slice: there are no figures of it.</Note>
      {tries.length > 1 ? <Tries tries={tries} /> : null}
    </>
  );
}

function Head({ answer, dag, task, run, map }: Props & { answer: SliceRun }) {
  const { line, assets, output_path, output_url, ray_job_id, ray_job_url } = answer;
  return (
    <>
      <Flex align="center" gap={4} mt={1} wrap="wrap">
        <Heading as="h1" maxWidth="100%" overflowWrap="anywhere" size="xl">
          <Plain most={HEADING}>{line.slice_key}</Plain>
        </Heading>
        <StateWords state={line.state} />
        <Trial line={line} />
      </Flex>
      <HStack color="fg.muted" columnGap={4} fontSize="sm" mt={2} rowGap={1} wrap="wrap">
        {line.archived ? (
          <Text>Airflow has removed this run; its figures are kept.</Text>
        ) : (
          <PageLink to={taskInstancePath(dag, task, run, map)}>Task instance and log</PageLink>
        )}
        {ray_job_url ? (
          <Link color="fg.info" display="inline" href={ray_job_url} maxWidth="100%" overflowWrap="anywhere" rel="noreferrer noopener" target="_blank">
            Ray job {ray_job_id ? <Plain>{ray_job_id}</Plain> : null}
          </Link>
        ) : null}
        {output_path ? (
          <Text maxWidth="100%" overflowWrap="anywhere">
            Output:{" "}
            {output_url ? (
              <Link color="fg.info" display="inline" href={output_url} rel="noreferrer noopener" target="_blank">
                <Plain>{output_path}</Plain>
              </Link>
            ) : (
              <Plain>{output_path}</Plain>
            )}
          </Text>
        ) : null}
        {assets.map(({ id, name }) => (
          <Text key={id} maxWidth="100%" overflowWrap="anywhere">
            Asset:{" "}
            <PageLink to={`/assets/${id}`}>
              <Plain most={HEADING}>{name}</Plain>
            </PageLink>
          </Text>
        ))}
        {line.model ? (
          <Text maxWidth="100%" overflowWrap="anywhere">
            Model: <Plain most={HEADING}>{line.model}</Plain>
          </Text>
        ) : null}
        <Text>
          {lasted(line)}
        </Text>
      </HStack>
    </>
  );
}

function lasted({ started, ended }: Pick<SliceLine, "ended" | "started">): string {
  if (started) return span(started, ended);
  return ended ? `ended ${time(ended)}` : "";
}

function whileItRuns({ line }: SliceRun): number | null {
  return ["running", "held", "queued"].includes(line.state) ? LIVE_MS : null;
}

/** What the slice's folder has of progress, and what can be done now, is of the newest run. */
function isNewest({ line, history }: SliceRun): boolean {
  return newestOf(line, history).run_id === line.run_id;
}

/** The newest run of the slice, or the one that published it. */
function OtherRun({ answer, dag, task }: { answer: SliceRun; dag: string; task: string }) {
  const { line, history } = answer;
  const other = isNewest(answer) ? publishedUnder(line, history) : newestOf(line, history);
  if (other === null) return null;
  const link = (
    <PageLink to={pathOf({ dag, task, run: other.run_id, map: other.map_index })}>
      <Plain most={NAME}>{other.run_id}</Plain>
    </PageLink>
  );
  return isNewest(answer) ? (
    <Note>
      This run has published nothing. Version {other.published_version} is there, as {link} had it:{" "}
      {count(other.counts.succeeded)} rows.
    </Note>
  ) : (
    <Note>
      The slice has a newer run, {link} ({LOOKS[other.state].words.toLowerCase()}): its page has what can be done.
    </Note>
  );
}

/** Also the command line publishes: it restores a version, or answers quarantined rows again. And what a run has
 * published, Airflow forgets when the task is cleared. */
function NewerVersion({ before, line, stored }: { before: SliceLine | null; line: SliceLine; stored: Stored | null }) {
  const version = stored?.versions[0];
  if (version === undefined) return null;
  if (line.published_version !== null && version.number > line.published_version) {
    return (
      <Note>
        Version {version.number} is published now. The figures of this page are of version {line.published_version}.
      </Note>
    );
  }
  if (line.state !== "failed" || before !== null) return null;
  return (
    <Note>
      This run has published nothing. Version {version.number} is there, as an earlier one had it:{" "}
      {count(version.counts.succeeded)} rows.
    </Note>
  );
}

/** Outcomes whose figures are of another run. */
const FOREIGN: Record<string, string> = {
  unchanged: "This run found the slice finished and asked nothing. The figures are those of the run that published it.",
  attached: "This run waited for another one that worked on the slice. The figures are those of that run.",
  kept: "This run found no rows in the input and left the published ones as they were. The figures are those of the run that published them.",
};

/** What 1,000 rows cost, where the stored report is of this run. */
function eachCost(line: SliceLine, stored: Stored | null, currency: string): string {
  const { total, per_1000_rows: each } = stored?.report?.cost ?? {};
  return typeof each === "number" && total === line.cost ? `${money(each, currency)} for 1,000 rows` : "engine start and inference";
}

function Result({ line, settings, stored }: { line: SliceLine; settings: Settings | null; stored: Stored | null }) {
  if (!line.outcome) return null;
  const { counts, tokens } = line;
  const { planned = 0, succeeded = 0, quarantined = 0 } = counts;
  const foreign = FOREIGN[line.outcome];
  const price = foreign ? null : cost(line, settings?.gpu_hour_price ?? null);
  const currency = settings?.currency ?? "";
  const utilisation = stored?.report?.utilisation ?? {};
  return (
    <Section title="Result">
      {foreign ? <Note>{foreign}</Note> : null}
      <Text mb={3}>
        <b>{count(planned)}</b> planned = <b>{count(succeeded)}</b> answered + <b>{count(quarantined)}</b> in quarantine
        {planned === succeeded + quarantined ? "" : " – these counts do not add up"}
      </Text>
      <Figures>
        <Figure more={shareOf(quarantined, planned)} name="In quarantine" value={count(quarantined)} />
        <Figure more={shareOf(counts.truncated, planned)} name="Truncated" value={count(counts.truncated)} />
        {counts.degenerate ? <Figure more={shareOf(counts.degenerate, planned)} name="Degenerate" value={count(counts.degenerate)} /> : null}
        <Figure more={shareOf(counts.invalid_output, planned)} name="Invalid answers" value={count(counts.invalid_output)} />
        <Figure more="kept from earlier attempts" name="Resumed" value={count(counts.resumed)} />
        <Figure more="asked once" name="Repeated requests" value={count(counts.deduplicated)} />
        <Figure more={tokens.cached ? `${compact(tokens.cached)} of them cached` : undefined} name="Tokens in" value={count(tokens.input)} />
        <Figure name="Tokens out" value={count(tokens.output)} />
        <Figure more="by the answer cache" name="Tokens saved" value={tokens.saved ? count(tokens.saved) : UNKNOWN} />
        <Figure more={line.tokens_per_s ? `${count(line.tokens_per_s)} tokens/s` : undefined} name="Speed" value={rate(line.rows_per_s, "rows/s")} />
        <Figure name="GPUs busy" value={line.gpu_mean === null ? "–" : `${line.gpu_mean.toFixed(0)}%`} more={gpuRange(utilisation)} />
        {price === null ? null : <Figure more={eachCost(line, stored, currency)} name="Cost of GPUs" value={money(price, currency)} />}
      </Figures>
    </Section>
  );
}

function shareOf(rows: number | undefined, planned: number): string | undefined {
  return rows ? percent(rows, planned) : undefined;
}

function gpuRange(figures: Record<string, number | null>): string | undefined {
  const { gpu_p10: low, flops_share: share, bandwidth_share: bandwidth } = figures;
  const memory = typeof bandwidth === "number" ? `, ${bandwidth.toFixed(0)}% of their memory's bandwidth` : "";
  if (typeof share === "number") return `at ${share.toFixed(0)}% of their peak${memory}`;
  return typeof low === "number" ? `${low.toFixed(0)}% in the idlest tenth` : undefined;
}

function Advice({ line, stored }: { line: SliceLine; stored: Stored | null }) {
  const advice = stored?.report?.advice;
  if (line.advice.length === 0 && !advice?.length) return null;
  return (
    <Section title="What to change next time">
      {advice
        ? advice.map(({ code, evidence, change }) => (
            <Box key={code} mb={2} overflowWrap="anywhere">
              <Text _firstLetter={{ textTransform: "uppercase" }}>
                <Plain>{evidence}</Plain>.
              </Text>
              <Text _firstLetter={{ textTransform: "uppercase" }} fontWeight="semibold">
                <Plain>{change}</Plain>
              </Text>
            </Box>
          ))
        : line.advice.map((code) => <Text key={code}>{code.replaceAll("_", " ")}</Text>)}
    </Section>
  );
}

/** Characters of a reason. */
const REASON = 300;

/** On a phone: what happened, when and why, one below the other; a run's own page has its figures. */
interface HistoryProps {
  answer: SliceRun;
  dag: string;
  /** That a person marked this run. */
  marked: string | null;
  task: string;
}

function History({ answer, dag, marked, task }: HistoryProps) {
  const isThis = ({ run_id, map_index }: SliceLine) => run_id === answer.line.run_id && map_index === answer.line.map_index;
  const history = answer.history.map((line) => (isThis(line) ? answer.line : line));
  return (
    <Section title="Runs of this slice">
      <PhoneTable
        header={
          <>
            <Table.ColumnHeader>State</Table.ColumnHeader>
            <Table.ColumnHeader>Ended</Table.ColumnHeader>
            <Table.ColumnHeader>Outcome</Table.ColumnHeader>
            <Table.ColumnHeader>Run</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Version</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Answered</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Resumed</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">In quarantine</Table.ColumnHeader>
          </>
        }
      >
        {history.map((line) => (
          <PhoneRow key={`${line.run_id}/${line.map_index}`}>
            <PhoneCell>
              <StateWords state={line.state} />
            </PhoneCell>
            <PhoneCell whiteSpace="nowrap">{time(line.ended)}</PhoneCell>
            <PhoneCell gridColumn="1 / -1" maxWidth="26rem" overflowWrap="anywhere">
              {line.upstream ? (
                <DidNotRun dag={dag} run={line.run_id} upstream={line.upstream} />
              ) : isThis(line) && marked !== null ? (
                <Plain>{marked}</Plain>
              ) : line.failure ? (
                <Plain most={REASON}>{sentenceOf(line.failure.sentence)}</Plain>
              ) : (
                (line.outcome ?? UNKNOWN)
              )}
              <Trial line={line} />
            </PhoneCell>
            <PhoneCell gridColumn="1 / -1" maxWidth="22rem" minWidth={{ md: "12rem" }} overflowWrap="anywhere">
              {isThis(line) ? (
                <b>
                  <Plain most={NAME}>{line.run_id}</Plain>
                </b>
              ) : (
                <PageLink to={pathOf({ dag, task, run: line.run_id, map: line.map_index })}>
                  <Plain most={NAME}>{line.run_id}</Plain>
                </PageLink>
              )}
            </PhoneCell>
            <Number>{line.published_version ?? UNKNOWN}</Number>
            <Number>{count(line.counts.succeeded)}</Number>
            <Number>{count(line.counts.resumed)}</Number>
            <Number>{count(line.counts.quarantined)}</Number>
          </PhoneRow>
        ))}
      </PhoneTable>
      {answer.tries.length > 1 ? <Tries tries={answer.tries} /> : null}
    </Section>
  );
}

function Number({ children }: { children: ReactNode }) {
  return (
    <Table.Cell hideBelow="md" textAlign="end">
      {children}
    </Table.Cell>
  );
}

function Tries({ tries }: { tries: Try[] }) {
  return (
    <Text color="fg.muted" fontSize="sm" mt={3}>
      Tries of this run:{" "}
      {tries.map(({ number, state, started, ended }) => `${number} ${state ?? "cleared"} (${span(started, ended)})`).join(", ")}
    </Text>
  );
}
