import { useCallback, useEffect, useMemo, useState } from "react";

import { ApiError, call, paths, type SliceLine, type SlicesPage } from "./api";

const LIMIT = 400;
const REFRESH_MS = 15_000;

export interface Slices {
  slices: SliceLine[] | null;
  total: number;
  unreadable: number;
  nextStart: string | null;
  error: ApiError | null;
  loadMore: () => void;
}

/** A task's runs of slices, the newest first: a page at once, others when asked for. */
export function useSlices(dag: string, task: string): Slices {
  const [pages, setPages] = useState<SlicesPage[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  const load = useCallback(
    (page: number) =>
      call<SlicesPage>(paths.slices(dag, task, page * LIMIT, LIMIT)).then(
        (answer) => {
          setPages((old) => Object.assign([...old], { [page]: answer }));
          setError(null);
        },
        (e: unknown) => setError(e instanceof ApiError ? e : new ApiError(0, String(e))),
      ),
    [dag, task],
  );
  useEffect(() => {
    setPages([]);
    void load(0);
    const timer = setInterval(() => void load(0), REFRESH_MS);
    return () => clearInterval(timer);
  }, [load]);
  const slices = useMemo(() => (pages.length > 0 ? pages.flatMap((page) => page.slices) : null), [pages]);
  return {
    slices,
    total: pages[0]?.total ?? 0,
    unreadable: pages.reduce((sum, page) => sum + page.unreadable, 0),
    nextStart: pages[0]?.next_start ?? null,
    error,
    loadMore: () => void load(pages.length),
  };
}
