// What a run had of the cluster, and how it was used.

import type { Stored } from "../../api";
import { count } from "../../format";
import { Figure, Figures, Section } from "../basics";
import { Workers } from "./Workers";

export function Cluster({ stored }: { stored: Stored | null }) {
  const report = stored?.report;
  const workers = report?.balance.workers ?? report?.per_worker?.length ?? 0;
  if (!report || workers === 0) return null;
  const share = (name: string) => {
    const value = report.utilisation[name];
    return typeof value === "number" ? `${value.toFixed(0)}%` : "–";
  };
  return (
    <Section title="Cluster">
      <Figures>
        <Figure name="Workers" value={count(workers)} />
        <Figure
          more="busiest worker, by the mean"
          name="Balance"
          value={report.balance.max_over_mean ? `${report.balance.max_over_mean.toFixed(2)} ×` : "–"}
        />
        <Figure name="GPU memory, highest" value={share("gpu_memory_max")} />
        <Figure name="CPUs busy" value={share("cpu_mean")} />
        <Figure name="Memory, highest" value={share("memory_max")} />
      </Figures>
      <Workers total={workers} workers={report.per_worker ?? []} />
    </Section>
  );
}
