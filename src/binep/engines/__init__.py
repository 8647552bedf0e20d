"""The same mini-batch, faster: each engine is checked against `reference`."""
