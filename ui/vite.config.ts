import react from "@vitejs/plugin-react-swc";
import { defineConfig } from "vite";

// Airflow's UI gives the page its own React and Chakra, by these names, and looks for `AirflowPlugin`.
const HOST = {
  react: "React",
  "react-dom": "ReactDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
  "react-router-dom": "ReactRouterDOM",
  "@chakra-ui/react": "ChakraUI",
  "@emotion/react": "EmotionReact",
};

export default defineConfig({
  plugins: [react()],
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  build: {
    outDir: "../airflow_provider_raydatallm/page/www",
    emptyOutDir: false,
    lib: { entry: "src/main.tsx", name: "AirflowPlugin", formats: ["umd"], fileName: () => "ray_llm.js" },
    rollupOptions: { external: Object.keys(HOST), output: { globals: HOST } },
  },
});
