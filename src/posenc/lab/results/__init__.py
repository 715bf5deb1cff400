"""Results from records: numbers, sentences, tables, figures, and the page of a comparison."""
