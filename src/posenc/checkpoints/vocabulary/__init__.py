"""What is said of a checkpoint's positions: a reading, the keys that it rests on, and specs."""
