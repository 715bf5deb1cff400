/** The formulas that the page computes while a slider moves; tests compare each with posenc's numbers. */

export * from "./rotary";
export * from "./biases";
export * from "./cache";
export * from "./planes";
export * from "./attention";
export * from "./sinusoidal";
export * from "./vectors";
export * from "./precision";
export * from "./schedules";
