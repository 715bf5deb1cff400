"""Published claims run again, and judged."""
