import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/**
 * Write the comment at the top of the bundle: the hash of its sources, and the licences of the packages in it, which
 * must stand in every copy. It is written last, because a minifier removes comments.
 */
function head(): Plugin {
  return {
    name: "head",
    enforce: "post",
    generateBundle(_, bundle) {
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        const packages = chunk.moduleIds.map((id) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1]);
        const texts = [...new Set(packages)].filter((name) => name !== undefined).sort().map(licence);
        const notice = [`built from ${sourceHash()}`, ...texts].join("\n\n").replaceAll("*/", "* /");
        chunk.code = `/*! ${notice}\n*/\n${chunk.code}`;
      }
    },
  };
}

/** Return a hash of all sources of the bundle; tests/explorer/test_bundle.py computes it again. */
function sourceHash(): string {
  const settings = ["package-lock.json", "package.json", "svelte.config.js", "tsconfig.json", "vite.config.ts"];
  const sources = readdirSync("src", { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`.replaceAll("\\", "/"));
  const hash = createHash("sha256");
  for (const name of [...settings, ...sources].sort())
    hash.update(`${name}\0${readFileSync(name, "utf8").replaceAll("\r\n", "\n")}\0`);
  return hash.digest("hex");
}

function licence(name: string): string {
  const folder = `node_modules/${name}`;
  const manifest = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = ["LICENSE", "LICENSE.md", "license"].map((f) => `${folder}/${f}`).find((f) => existsSync(f));
  const text = file ? readFileSync(file, "utf8").trim().replaceAll("\r\n", "\n") : `Licence: ${manifest.license}`;
  return `${name} ${manifest.version}\n${text}`;
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
