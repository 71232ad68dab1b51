// Writes the hash of the page's source beside its bundle: `tests/unit/page/test_bundle.py` compares them.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const files = ["package-lock.json", "package.json", "vite.config.ts", ...walk("src")].sort();
const hash = createHash("sha256");
for (const file of files) {
  hash.update(`${file}\n`);
  hash.update(readFileSync(file));
}
writeFileSync("../airflow_provider_raydatallm/page/www/source.sha256", `${hash.digest("hex")}\n`);

function walk(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? walk(`${folder}/${entry.name}`) : [`${folder}/${entry.name}`],
  );
}
