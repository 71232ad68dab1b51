// How busy a run was, and how fast, over time.

import { Box, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import type { History } from "../../api";
import { compact, duration } from "../../format";
import { markEvery, overTime, type Scale, soFar, type Steps } from "../../overTime";
import { Chart } from "../Chart";

const MARKS = 8;

/** `seconds`: of the phases of a finished run. */
export function OverTime({ history, seconds }: { history: History; seconds?: Record<string, number> }) {
  const scale = useMemo(() => (seconds ? overTime(history, seconds) : soFar(history)), [history, seconds]);
  const options = useMemo(() => scale.charts.map((chart) => optionOf(chart, scale)), [scale]);
  if (scale.charts.length === 0) return null;
  return (
    <>
      {scale.charts.map((chart, i) => (
        <Box key={chart.title} mt={4}>
          <Text fontSize="sm" fontWeight="semibold">
            {chart.title}
          </Text>
          <Chart height="120px" label={`${chart.title} over time`} option={options[i] as Record<string, unknown>} />
        </Box>
      ))}
      <Text color="fg.muted" fontSize="xs" mt={1}>
        {scale.isWholeRun ? "On the scale of the bar above." : "From the first request on."}
        {history.gpu_busy ? "" : " No GPU was measured: the nodes have none, or hide them."}
      </Text>
    </>
  );
}

function optionOf({ title, unit, color, most, points }: Steps, scale: Scale): Record<string, unknown> {
  const shown = (value: unknown) => (typeof value === "number" ? `${value.toPrecision(3)} ${unit}` : "–");
  return {
    // As wide as the bar of the phases.
    grid: { left: 0, right: 0, top: 18, bottom: 22, outerBoundsMode: "none" },
    legend: { show: false },
    xAxis: {
      type: "value",
      min: 0,
      max: scale.to,
      interval: markEvery(scale.to, MARKS),
      splitLine: { show: false },
      axisLabel: {
        formatter: (value: number) => duration(value),
        alignMinLabel: "left",
        alignMaxLabel: "right",
        hideOverlap: true,
      },
    },
    yAxis: {
      type: "value",
      min: 0,
      max: most ?? undefined,
      splitNumber: 2,
      axisLabel: {
        inside: true,
        verticalAlign: "bottom",
        formatter: (value: number) => (value === 0 ? "" : unit === "%" ? `${value}%` : compact(value)),
      },
      z: 3,
    },
    series: [
      {
        name: title,
        data: points,
        type: "line",
        step: "end",
        showSymbol: false,
        areaStyle: { color, opacity: 0.35 },
        itemStyle: { color },
        lineStyle: { color, width: 1.5 },
        tooltip: { valueFormatter: shown },
      },
    ],
  };
}
