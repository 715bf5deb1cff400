"""Live models of transformers: their own position code run through posenc's modules."""
