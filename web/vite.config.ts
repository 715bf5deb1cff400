import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/**
 * What stands before the bundle: what it was built from, and the licences of the packages whose code is in it, which
 * ask to stand in every copy. It is written last, for a minifier takes comments away.
 */
function head(): Plugin {
  return {
    name: "head",
    enforce: "post",
    generateBundle(_, bundle) {
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        const carried = chunk.moduleIds.map((id) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1]);
        const texts = [...new Set(carried)].filter((name) => name !== undefined).sort().map(licence);
        const said = [`built from ${sources()}`, ...texts].join("\n\n").replaceAll("*/", "* /");
        chunk.code = `/*! ${said}\n*/\n${chunk.code}`;
      }
    },
  };
}

/** A hash of all that the bundle is built from; tests/explorer/test_bundle.py computes it again. */
function sources(): string {
  const beside = ["package-lock.json", "package.json", "svelte.config.js", "tsconfig.json", "vite.config.ts"];
  const within = readdirSync("src", { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`.replaceAll("\\", "/"));
  const hash = createHash("sha256");
  for (const name of [...beside, ...within].sort())
    hash.update(`${name}\0${readFileSync(name, "utf8").replaceAll("\r\n", "\n")}\0`);
  return hash.digest("hex");
}

function licence(name: string): string {
  const folder = `node_modules/${name}`;
  const about = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = ["LICENSE", "LICENSE.md", "license"].map((f) => `${folder}/${f}`).find((f) => existsSync(f));
  const text = file ? readFileSync(file, "utf8").trim().replaceAll("\r\n", "\n") : `Licence: ${about.license}`;
  return `${name} ${about.version}\n${text}`;
}

export default defineConfig({
  plugins: [svelte({ compilerOptions: { css: "injected" } }), head()],
  build: {
    outDir: "../src/posenc/lab/views",
    emptyOutDir: false,
    copyPublicDir: false,
    target: "es2022",
    lib: { entry: "src/main.ts", formats: ["iife"], name: "posenc", fileName: () => "views.js" },
  },
});
