"""What introductions claim about Transformers, each as an experiment with a prediction, a measurement and a verdict."""
