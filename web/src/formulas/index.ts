/** What the page computes itself while a slider moves; tests hold each to posenc's own numbers. */

export * from "./sinusoidal";
export * from "./precision";
export * from "./schedules";
