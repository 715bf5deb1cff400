"""A search of divisors for the pairs of a rotary encoding, on text that is never measured on."""
