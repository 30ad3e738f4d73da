"""Token store, collation, and the sample corpus with its tokenizer and target."""
