import { existsSync, readFileSync } from "node:fs";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** The licences of the packages whose code is in the bundle: they ask to stand in every copy. */
function licences(): Plugin {
  return {
    name: "licences",
    renderChunk(code, chunk) {
      const carried = chunk.moduleIds.map((id) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1]);
      const texts = [...new Set(carried)].filter((name) => name !== undefined).sort().map(licence);
      return { code: `/*!\n${texts.join("\n\n").replaceAll("*/", "* /")}\n*/\n${code}`, map: null };
    },
  };
}

function licence(name: string): string {
  const folder = `node_modules/${name}`;
  const about = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = ["LICENSE", "LICENSE.md", "license"].map((f) => `${folder}/${f}`).find((f) => existsSync(f));
  const text = file ? readFileSync(file, "utf8").trim() : `Licence: ${about.license}`;
  return `${name} ${about.version}\n${text}`;
}

export default defineConfig({
  plugins: [svelte({ compilerOptions: { css: "injected" } }), licences()],
  build: {
    outDir: "../src/posenc/lab/views",
    emptyOutDir: false,
    copyPublicDir: false,
    target: "es2022",
    lib: { entry: "src/main.ts", formats: ["iife"], name: "posenc", fileName: () => "views.js" },
  },
});
