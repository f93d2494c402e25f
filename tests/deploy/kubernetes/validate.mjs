// Validates JSON documents (one per line on standard input) against the schemas of the Kubernetes API and of the
// Prometheus operator's resources, which lie in the folder given. Exit code 1 with one line per mistake.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const packages = resolve(process.argv[2], "node_modules");

async function model({ apiVersion, kind }) {
  const name = apiVersion.includes("monitoring.coreos.com") ? "@kubernetes-models/prometheus-operator" : "kubernetes-models";
  const module = await import(pathToFileURL(`${packages}/${name}/${apiVersion}/${kind}.js`).href);
  return module[kind];
}

let wrong = 0;
let count = 0;
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const document = JSON.parse(line);
  count += 1;
  try {
    const Model = await model(document);
    new Model(document).validate();
  } catch (error) {
    wrong += 1;
    console.error(`${document.kind}/${document.metadata?.name}: ${error.message}`);
  }
}
console.log(`${count} documents, ${wrong} wrong`);
process.exit(wrong || !count ? 1 : 0);
