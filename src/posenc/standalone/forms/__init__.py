"""The readable form of each encoding: a file of its name, that imports torch, math and its neighbours here."""
