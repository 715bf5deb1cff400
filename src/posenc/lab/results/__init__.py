"""What records say: numbers, sentences, tables, figures, and the page of a comparison."""
