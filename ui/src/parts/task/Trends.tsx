// Charts of how a task's slices changed.

import { Box, Heading, SimpleGrid } from "@chakra-ui/react";
import { useMemo } from "react";

import type { Settings, SliceLine } from "../../api";
import { gridOf } from "../../calendar";
import { compact, duration } from "../../format";
import { markEvery } from "../../overTime";
import { shortName } from "../../text";
import { type Series, type Trend, trendsOf } from "../../trends";
import { Section } from "../basics";
import { Chart } from "../Chart";

/** Of an axis of times. */
const MARKS = 5;

interface Props {
  /** With figures, in their order. */
  slices: SliceLine[];
  settings: Settings | null;
}

export function Trends({ slices, settings }: Props) {
  const price = settings?.gpu_hour_price ?? null;
  const currency = settings?.currency ?? "";
  const trends = useMemo(() => trendsOf(slices, price, currency), [slices, price, currency]);
  const charts = useMemo(() => {
    const keys = slices.map((slice) => shortName(slice.slice_key));
    return trends.map((trend) => ({ title: trend.title, option: optionOf(trend, keys, gridOf(keys) === "names") }));
  }, [slices, trends]);
  if (slices.length < 2) return null;
  return (
    <Section title="Trends">
      <SimpleGrid columns={{ base: 1, lg: 2 }} gap={6}>
        {charts.map(({ title, option }) => (
          <Box key={title} minWidth={0}>
            <Heading as="h3" mb={1} size="xs">
              {title}
            </Heading>
            <Chart label={`${title} of ${slices.length} slices`} option={option} />
          </Box>
        ))}
      </SimpleGrid>
    </Section>
  );
}

/** Of series on top of each other. */
function highest(series: Series[]): number {
  const sums = series[0]?.values.map((_, i) => series.reduce((sum, one) => sum + (one.values[i] ?? 0), 0));
  return Math.max(1, ...(sums ?? []));
}

function optionOf({ kind, series, unit }: Trend, keys: string[], areNames: boolean): Record<string, unknown> {
  const isStacked = kind !== "line";
  return {
    grid: { left: 8, right: 12, top: series.length > 1 ? 34 : 14, bottom: 4, containLabel: true },
    legend: { show: series.length > 1 },
    xAxis: { type: "category", data: keys, axisLabel: { width: 100, overflow: "truncate", hideOverlap: true, alignMinLabel: "left", alignMaxLabel: "right", showMinLabel: true } },
    yAxis: {
      type: "value",
      max: kind === "area" ? 100 : undefined,
      interval: unit === "s" ? markEvery(highest(series), MARKS) : undefined,
      axisLabel: { formatter: (value: number) => (unit === "%" ? `${value}%` : unit === "s" ? duration(value) : compact(value)) },
    },
    series: series.map(({ name, color, values }) => ({
      name: shortName(name),
      data: values,
      // Names have no order that a line could follow.
      type: kind === "bar" || areNames ? "bar" : "line",
      stack: isStacked ? "all" : undefined,
      areaStyle: kind === "area" ? { opacity: 0.85 } : undefined,
      itemStyle: { color },
      lineStyle: { color, width: 2 },
      symbolSize: 5,
      barMaxWidth: 28,
      tooltip: {
        valueFormatter: (value: unknown) =>
          typeof value === "number" ? `${value.toLocaleString("en-US", { maximumFractionDigits: 2 })} ${unit}` : "–",
      },
    })),
  };
}
