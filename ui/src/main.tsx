// The page as Airflow's UI loads it: a component in a global, drawn with the React, router and theme of its
// host.

import { Box, ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { useEffect } from "react";
import { useLocation } from "react-router-dom";

import { SlicePage } from "./pages/SlicePage";
import { TaskPage } from "./pages/TaskPage";
import { TasksPage } from "./pages/TasksPage";
import { routeOf } from "./route";
import { LANGUAGE } from "./text";

export default function RayLLM() {
  const { dag, task, run, map } = routeOf(useLocation().pathname);
  useEffect(() => {
    document.title = [run && "Slice", task, "Ray LLM"].filter(Boolean).join(" · ");
  }, [task, run]);
  const system = (globalThis as { ChakraUISystem?: typeof defaultSystem }).ChakraUISystem ?? defaultSystem;
  return (
    <ChakraProvider value={system}>
      <Box
        {...LANGUAGE}
        aria-label="Ray LLM"
        as="section"
        color="fg"
        height="100%"
        id="ray-llm"
        overflow="auto"
        p={{ base: 3, md: 5 }}
      >
        {dag && task && run ? (
          <SlicePage dag={dag} map={map ?? -1} run={run} task={task} />
        ) : dag && task ? (
          <TaskPage dag={dag} key={`${dag}/${task}`} task={task} />
        ) : (
          <TasksPage />
        )}
      </Box>
    </ChakraProvider>
  );
}
