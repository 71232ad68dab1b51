import { useEffect, useState } from "react";

import { ApiError, call } from "./api";

export interface Data<T> {
  value: T | null;
  error: ApiError | null;
}

/** Fetches JSON, and again every `refreshMs` while that is set. A failed refresh keeps what was there. */
export function useData<T>(path: string | null, refreshMs: number | null = null): Data<T> {
  const [data, setData] = useState<Data<T> & { path: string | null }>({ path, value: null, error: null });
  useEffect(() => {
    if (path === null) return undefined;
    let isCurrent = true;
    const load = () =>
      call<T>(path).then(
        (value) => isCurrent && setData({ path, value, error: null }),
        (error: unknown) => {
          const known = error instanceof ApiError ? error : new ApiError(0, String(error));
          if (isCurrent) setData((old) => ({ path, value: old.path === path ? old.value : null, error: known }));
        },
      );
    void load();
    const timer = refreshMs === null ? undefined : setInterval(() => void load(), refreshMs);
    return () => {
      isCurrent = false;
      clearInterval(timer);
    };
  }, [path, refreshMs]);
  return data.path === path ? data : { value: null, error: null };
}
