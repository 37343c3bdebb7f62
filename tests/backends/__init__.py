"""A real language model, Arize Phoenix and MLflow: heavy programs, each in an environment of its own."""
