import { expect, it, vi } from "vitest";

import { callInTurn } from "../src/api";

it("asks for a few at a time, and for all, whichever fails", async () => {
  let running = 0;
  let most = 0;
  vi.stubGlobal("document", { baseURI: "http://a/" });
  vi.stubGlobal("fetch", async (path: string) => {
    most = Math.max(most, (running += 1));
    await new Promise((done) => setTimeout(done, 1));
    running -= 1;
    if (path.endsWith("2")) throw new Error("away");
    return { ok: true, json: async () => path };
  });
  const answers = await Promise.allSettled(Array.from({ length: 10 }, (_, i) => callInTurn<string>(String(i))));
  expect(answers.map(({ status }) => status).filter((status) => status === "fulfilled")).toHaveLength(9);
  expect(most).toBe(3);
  vi.unstubAllGlobals();
});
