"""What batching does to learning: gradients at frozen weights, and whole short runs."""
