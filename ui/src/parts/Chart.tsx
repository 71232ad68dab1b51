// A chart of ECharts in the colours of Airflow's theme.

import { Box } from "@chakra-ui/react";
import { BarChart, LineChart } from "echarts/charts";
import { AriaComponent, DataZoomComponent, GridComponent, LegendComponent, TooltipComponent } from "echarts/components";
import * as echarts from "echarts/core";
import { SVGRenderer } from "echarts/renderers";
import { useEffect, useRef } from "react";

echarts.use([
  AriaComponent, BarChart, DataZoomComponent, GridComponent, LegendComponent, LineChart, SVGRenderer, TooltipComponent,
]);

interface Props {
  option: Record<string, unknown>;
  label: string;
  height?: string;
}

export function Chart({ option, label, height = "220px" }: Props) {
  const element = useRef<HTMLDivElement>(null);
  const chart = useRef<echarts.ECharts | null>(null);
  const latest = useRef(option);
  const draw = () => chart.current?.setOption(themed(latest.current), { notMerge: true });
  useEffect(() => {
    const box = element.current;
    if (box === null) return undefined;
    const resized = new ResizeObserver(() => chart.current?.resize());
    // Airflow's button for dark and light changes a class of the document.
    const recolored = new MutationObserver(draw);
    // What nobody sees yet does not hold up what is seen.
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      chart.current = echarts.init(box, null, { renderer: "svg" });
      draw();
      resized.observe(box);
      recolored.observe(document.documentElement, { attributeFilter: ["class", "data-theme"] });
    });
    seen.observe(box);
    return () => {
      for (const observer of [seen, resized, recolored]) observer.disconnect();
      chart.current?.dispose();
      chart.current = null;
    };
  }, []);
  useEffect(() => {
    latest.current = option;
    draw();
  }, [option]);
  return <Box aria-label={label} height={height} ref={element} role="img" width="100%" />;
}

function themed(option: Record<string, unknown>): Record<string, unknown> {
  const [ink, line, ground] = ["fg", "border", "bg-panel"].map(color) as [string, string, string];
  const axis = { axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } } };
  const merged = (given: unknown) =>
    (Array.isArray(given) ? given : [given]).map((one: { axisLabel?: object }) => ({
      ...axis,
      ...one,
      axisLabel: { color: ink, ...one.axisLabel },
    }));
  return {
    animation: false,
    backgroundColor: "transparent",
    textStyle: { color: ink, fontFamily: getComputedStyle(document.body).fontFamily },
    ...option,
    xAxis: merged(option.xAxis),
    yAxis: merged(option.yAxis),
    legend: { textStyle: { color: ink }, top: 0, type: "scroll", pageTextStyle: { color: ink }, ...(option.legend as object) },
    tooltip: {
      trigger: "axis",
      backgroundColor: ground,
      borderColor: line,
      textStyle: { color: ink },
      // Labels and names come from data: they are shown as text, never as markup.
      renderMode: "richText",
      confine: true,
    },
  };
}

/** What a colour of the theme is now, of which ECharts has to know the value. */
function color(token: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--chakra-colors-${token})`;
  document.documentElement.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
