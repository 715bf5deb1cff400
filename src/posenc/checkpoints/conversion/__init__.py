"""`posenc convert`: write a checkpoint in another form."""
