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
  useEffect(() => {
    if (element.current === null) return undefined;
    const chart = echarts.init(element.current, null, { renderer: "svg" });
    const draw = () => chart.setOption(themed(option), { notMerge: true });
    draw();
    const resized = new ResizeObserver(() => chart.resize());
    resized.observe(element.current);
    // Airflow's button for dark and light changes a class of the document.
    const recolored = new MutationObserver(draw);
    recolored.observe(document.documentElement, { attributeFilter: ["class", "data-theme"] });
    return () => {
      resized.disconnect();
      recolored.disconnect();
      chart.dispose();
    };
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
