"""Encodings shown to a person: in words, in numbers, in pictures."""
