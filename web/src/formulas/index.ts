/** What the page computes itself while a slider moves; tests hold each to posenc's own numbers. */

export * from "./rotary";
export * from "./biases";
export * from "./cache";
export * from "./planes";
export * from "./attention";
export * from "./sinusoidal";
export * from "./vectors";
export * from "./precision";
export * from "./schedules";
